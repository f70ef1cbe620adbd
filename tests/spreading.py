"""How the tests are spread over several processes, where pytest-xdist is there and `-n` asks for it.

What shares something stays together, in one process and in order: the tests of a module, which may share a fixture, and
all of `tests/conformance`, whose last test counts what became of the others. What takes longest is begun first, so that
in the end no process waits for another.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["Spreading", "group_of"]

_KEPT_TOGETHER: Final = "tests/conformance/"


def group_of(nodeid: str) -> str:
    """Return what a test, named by its node id, stays together with: its module, or the folder that counts itself."""
    return _KEPT_TOGETHER if nodeid.startswith(_KEPT_TOGETHER) else nodeid.partition("::")[0]


class Spreading(LoadScopeScheduling):
    """Hands group after group to the process that has next to nothing left, in the order in which they were collected.

    `conftest.py` puts what takes longest in front; the order that xdist would make, by the number of tests, is no guide
    here, where a module of five tests may take as long as one of five hundred.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
