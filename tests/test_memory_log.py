"""The log in memory keeps the contract."""

from __future__ import annotations

from typing import Any

import pytest

import eventlog
from eventlog.errors import InvalidInput
from eventlog.stores import MemoryLog
from eventlog.testing.log_contract import LogContract, NewLog, OpenableLog


class TestMemoryLog(LogContract):
    @pytest.fixture
    def new_log(self) -> NewLog:
        def new(**options: Any) -> OpenableLog:
            log: MemoryLog = eventlog.open("memory:", **options)
            return log

        return new


@pytest.mark.parametrize("options", [{"is_read_only": True}, {"may_create": False}, {"views": [object()]}])
def test_what_a_log_in_memory_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="a log in memory is new"):
        eventlog.open("memory:", **options)
