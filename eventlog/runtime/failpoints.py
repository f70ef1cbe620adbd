"""Named points at which a crash can be injected, one before and one after each commit and each effect.

Code that passes such a point calls `reach(NAME)`. In production `reach` is `pass_by`; the command line and the tests
hand in `exit_at(name)`, which ends the process there as a crash would: no handlers, no clean-up, exit status 91.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

__all__ = [
    "CRASH_STATUS",
    "EFFECT_AFTER",
    "EFFECT_INSIDE",
    "FAILPOINTS",
    "INTENT_AFTER_COMMIT",
    "INTENT_BEFORE_COMMIT",
    "RESULT_AFTER_COMMIT",
    "RESULT_BEFORE_COMMIT",
    "Reach",
    "exit_at",
    "pass_by",
]

Reach = Callable[[str], None]

INTENT_BEFORE_COMMIT: Final = "intent.before_commit"
INTENT_AFTER_COMMIT: Final = "intent.after_commit"
EFFECT_INSIDE: Final = "effect.inside"
EFFECT_AFTER: Final = "effect.after"
RESULT_BEFORE_COMMIT: Final = "result.before_commit"
RESULT_AFTER_COMMIT: Final = "result.after_commit"

FAILPOINTS: Final = (
    INTENT_BEFORE_COMMIT,
    INTENT_AFTER_COMMIT,
    EFFECT_INSIDE,
    EFFECT_AFTER,
    RESULT_BEFORE_COMMIT,
    RESULT_AFTER_COMMIT,
)

CRASH_STATUS: Final = 91


def pass_by(name: str) -> None:
    """Do nothing: the production value of every `reach`."""


def exit_at(target: str) -> Reach:
    """Return a `reach` that ends the process with status 91 when the point `target` is passed.

    Raises ValueError if there is no such failpoint, so that a misspelt test cannot pass by never crashing.
    """
    if target not in FAILPOINTS:
        raise ValueError(f"no failpoint is called {target!r}; there are {', '.join(FAILPOINTS)}")

    def reach(name: str) -> None:
        if name == target:
            os._exit(CRASH_STATUS)

    return reach
