"""What the engine is tested with, for users' tests too.

    clock           a clock that stands still until it is told otherwise
    given           given, when, then: a run's past, a command, what comes out
    log_contract    what every store has to do, as a suite of tests to inherit

Only `log_contract` needs pytest, and runs under pytest-asyncio in auto mode.
"""

from __future__ import annotations

import sys

__all__: list[str] = []

if "pytest" in sys.modules:
    # The suite's assertions are plain `assert`s; rewritten, they say what they saw, as those of a test module do.
    sys.modules["pytest"].register_assert_rewrite("eventlog.testing.log_contract", "eventlog.testing.given")
