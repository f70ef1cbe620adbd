"""What is measured, in the order in which it is told."""

from __future__ import annotations

from typing import Final

from tools.bench.cases.appends import APPEND_1, APPEND_100, APPEND_1000, BATCHES
from tools.bench.cases.case import Case, Place
from tools.bench.cases.history import HISTORY
from tools.bench.cases.limits import LIMITS
from tools.bench.cases.processes import PROCESSES
from tools.bench.cases.proof import PROOF
from tools.bench.cases.reads import FEED, LOAD, VERIFY
from tools.bench.cases.rebuild import REBUILD
from tools.bench.cases.recovery import RECOVERY
from tools.bench.cases.resume import RESUME
from tools.bench.cases.size import SIZE
from tools.bench.cases.storage import STORAGE
from tools.bench.cases.subscribers import SUBSCRIBERS
from tools.bench.cases.workers import WORKERS
from tools.bench.cases.workflows import WORKFLOWS

__all__ = ["CASES", "Case", "Place"]

CASES: Final[tuple[Case, ...]] = (
    LIMITS,
    APPEND_1,
    APPEND_100,
    APPEND_1000,
    BATCHES,
    LOAD,
    FEED,
    VERIFY,
    PROOF,
    RESUME,
    REBUILD,
    PROCESSES,
    HISTORY,
    SIZE,
    WORKFLOWS,
    WORKERS,
    RECOVERY,
    STORAGE,
    SUBSCRIBERS,
)
