"""The log in memory keeps the contract."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

import eventlog
from eventlog.errors import InvalidInput
from eventlog.events import ActionExecuted
from eventlog.log import Append, Expect, NewEvent
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


async def test_what_is_judged_of_a_page_leaves_out_what_may_be_large() -> None:
    async with MemoryLog(actor="test") as log:
        await log.append("a", [NewEvent("noted", {})], expect=Expect.any())
        executed = ActionExecuted(action="send", op_key="op", result="x" * 1000)
        await log.append_reserved([Append("run:a", [executed], Expect.any())])
        page = await log.check_page(after=0)
    assert page.problems == []
    ((said, data),) = [(said, said.data) for said in page.judged]
    assert (said.position, said.type, said.body) == (2, "action_executed", b"")
    assert data == replace(executed, result=None)
