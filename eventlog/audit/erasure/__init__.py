"""Lawful erasure, whole: what was recorded is gone from the log and from everything that was made of it beside it.

    scope       which events that is, and which runs they are of
    views       the views that may hold something of them, and who can build those again
    erasing     the steps, in the order in which a crash between any two of them does no harm

What stays is what the proofs need (`eventlog/stores/sqlite/erasures.py`), and for a run what its fold needs
(`eventlog/remainders.py`). What is out of reach from here is named in each result (`Erasure.out_of_reach`).
"""

from eventlog.audit.erasure.erasing import (
    STEPS,
    Erasure,
    Plan,
    erase,
    erase_subject,
    plan_erasure,
    plan_subject_erasure,
)
from eventlog.audit.erasure.scope import Scope
from eventlog.audit.erasure.views import KnownViews

__all__ = [
    "STEPS",
    "Erasure",
    "KnownViews",
    "Plan",
    "Scope",
    "erase",
    "erase_subject",
    "plan_erasure",
    "plan_subject_erasure",
]
