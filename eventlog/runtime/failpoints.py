"""Named points at which a crash can be injected, one before and one after each commit and each effect.

Code that passes such a point calls `reach(NAME)`. In production `reach` is `pass_by`; the command line and the tests
hand in `crash_at(spec)`, which ends the process there as a crash would: no handlers, no clean-up.

    effect.after          exit status 91 when the point is passed for the first time
    effect.after:2        … for the second time
    effect.after=kill     SIGKILL instead; also `effect.after:2=kill`
"""

from __future__ import annotations

import os
import re
import signal
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
    "crash_at",
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

_SPEC: Final = re.compile(r"(?P<name>[a-z_.]+)(?::(?P<count>[1-9][0-9]{0,5}))?(?P<kill>=kill)?")


def pass_by(name: str) -> None:
    """Do nothing: the production value of every `reach`."""


def crash_at(spec: str) -> Reach:
    """Return a `reach` that ends the process at the point that `spec` names.

    Raises ValueError if there is no such failpoint, so that a misspelt test cannot pass by never crashing.
    """
    match = _SPEC.fullmatch(spec)
    if match is None or match["name"] not in FAILPOINTS:
        known = ", ".join(FAILPOINTS)
        raise ValueError(f"no failpoint is called {spec!r}; it is NAME[:COUNT][=kill], NAME one of {known}")
    target, left = match["name"], int(match["count"] or 1)
    end = _kill if match["kill"] else _exit

    def reach(name: str) -> None:
        nonlocal left
        if name == target:
            left -= 1
            if left == 0:
                end()

    return reach


def _exit() -> None:
    os._exit(CRASH_STATUS)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
