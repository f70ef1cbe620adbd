"""The engine beside its limits and its peers, measured in interleaved rounds.

payloads    the events that everybody stores
steps       the work that everybody's workflows do, and what a library must do to have them measured
store       what a store must do to be measured
peers/      the engine, raw SQLite and the libraries that a user might pick instead, one file each
cases/      what is measured, one file each
rounds      how: round after round, side after side, so that a slow moment of the machine meets them all
ratios      what follows: medians, spread, paired ratios
goals       what is good enough
durability  the proof that the settings are in force: syncs counted, PRAGMAs read back
machine     what the figures depend on
report      the result as text, JSON and a table for the README
program     the command line
"""
