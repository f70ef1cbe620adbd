"""Events as sentences: one readable line each, which says who asked, decided, did or was refused what, and why. Pure.

A sentence is plain text. Ids and hashes are whole; texts and values of any length are cut to 200 characters, with a
mark that says how many are left out: the log holds them whole. What an event quotes is in it character by character, so
that hidden and bidirectional characters are NOT made visible here: whoever shows a sentence does that
(`eventlog.text.visible`), as with every text of the log. Only quotes, backslashes and ASCII control characters are
escaped, as JSON text has them, so that data cannot look like a part of the sentence.

    sentence    one event
    requests    requests, decisions, effects, and what was refused
    progress    beginnings, ends, steps, waits, claims, other runs
    of_log      the log itself: keys, approvers, restores, erasures
    words       data inside a sentence
"""

from eventlog.sentences.sentence import sentence

__all__ = ["sentence"]
