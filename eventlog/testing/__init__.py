"""What the engine is tested with, for users' tests too.

    clock           a clock that stands still until it is told otherwise
    runs            given, when, then: the story of a workflow run, in memory
    replay          the recorded history of a run against the code of today
    crashes         a workflow, crashed at each of its appends, comes to the same each time
    plugin          fixtures for pytest
    given           given, when, then for the commands of `eventlog.decide`
    log_contract    what every store has to do, as a suite of tests to inherit

Only `plugin` and `log_contract` need pytest; `log_contract` runs under pytest-asyncio in auto mode. All others work in
any test, async or not, and are imported by name, for none is loaded unless it is used.

`crashes` stands on `life` (one life of a process), `nursery` (processes), `ledger` (what happened) and `history` (what
it came to); `life` and `replay` on `twin`, which stands between a workflow and what it asks for.
"""

from __future__ import annotations

import sys

__all__: list[str] = []

if "pytest" in sys.modules:
    # The suite's assertions are plain `assert`s; rewritten, they say what they saw, as those of a test module do.
    sys.modules["pytest"].register_assert_rewrite("eventlog.testing.log_contract", "eventlog.testing.given")
