"""Crashes of real processes at named points, and what the next process makes of what they left.

processes   a child that crashes or tells what it found
subjects    the actions, each with a receiver whose effects can be counted
targets     the receivers of many runs that are killed at random
receiver    a keyed HTTP receiver on loopback
expected    what must be true after a crash, and what the next resume must answer
cells       one crash, or several in a row: performed, looked at, compared with what was expected
reached     the failpoints that are passed when nothing crashes
article     the five rows of an article about checkpoints and receipts

`tools/crash_matrix.py` and `tools/crash_runs.py` are the command lines.
"""
