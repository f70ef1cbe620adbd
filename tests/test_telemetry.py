"""Log lines: silent until asked for, one for each thing that happened, and never a body."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import eventlog
from eventlog.errors import Refused, WrongExpectedVersion
from eventlog.log import Expect, NewEvent
from eventlog.stores.telemetry import logger

SECRET = "the body of an event"


async def do_a_little_of_everything(path: Path) -> None:
    async with eventlog.open(path) as log:
        result = await log.append("orders-7", [NewEvent("order_placed", {"secret": SECRET})], expect=Expect.any())
        assert result.version == 1
        with pytest.raises(WrongExpectedVersion):
            await log.append("orders-7", [NewEvent("order_placed", {"secret": SECRET})], expect=Expect.at(7))
        runner = eventlog.Runner(log)
        await runner.propose("run-1", eventlog.propose("write_file", {"content": SECRET}, "x"))
        with pytest.raises(Refused):
            await runner.resume("run-1")


async def test_each_append_refusal_and_conflict_is_one_line_with_its_facts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "eventlog"):
        await do_a_little_of_everything(tmp_path / "log.db")
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "eventlog"]
    wanted = [
        ("DEBUG", "appended stream='orders-7' version=1 position=1 deduplicated=False"),
        ("INFO", "append_refused code='version_conflict' stream='orders-7'"),
        ("INFO", "refused code='approval_required' run_id='run-1'"),
    ]
    for line in wanted:
        assert lines.count(line) == 1, line
    assert any(message.startswith("wal_checkpoint ") for _, message in lines)


async def test_no_line_holds_a_body(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "eventlog"):
        await do_a_little_of_everything(tmp_path / "log.db")
    assert [record for record in caplog.records if record.name == "eventlog"]
    assert SECRET not in "".join(record.getMessage() for record in caplog.records if record.name == "eventlog")


def test_a_program_that_configures_nothing_sees_nothing(tmp_path: Path) -> None:
    code = f"""
import asyncio, logging, eventlog
from eventlog import Expect, NewEvent
async def main():
    async with eventlog.open({str(tmp_path / "log.db")!r}) as log:
        for expect in (Expect.no_stream(), Expect.no_stream()):
            try:
                await log.append("s", [NewEvent("t", {{}})], expect=expect)
            except eventlog.WrongExpectedVersion:
                pass
asyncio.run(main())
assert logging.getLogger("eventlog").level == logging.NOTSET and not logging.getLogger().handlers
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_line_is_written_with_the_trace_of_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "eventlog"):
        for write in (logger.debug, logger.info, logger.warning, logger.error):
            write("happened", share="100 %s")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            logger.exception("failed", why="arithmetic")
    assert [record.getMessage() for record in caplog.records[:4]] == ["happened share='100 %s'"] * 4
    assert [record.levelname for record in caplog.records] == ["DEBUG", "INFO", "WARNING", "ERROR", "ERROR"]
    assert "ZeroDivisionError" in caplog.text


def test_a_program_that_looks_at_nothing_does_not_load_structlog(tmp_path: Path) -> None:
    code = f"""
import asyncio, sys, eventlog
from eventlog import Expect, NewEvent
async def main():
    async with eventlog.open({str(tmp_path / "log.db")!r}) as log:
        await log.append("s", [NewEvent("t", {{}})], expect=Expect.no_stream())
asyncio.run(main())
print("structlog" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "False\n"
