"""The process that audits for the storage campaigns: one for many folders, replaced as soon as anything was wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.campaigns.processes.told import Call
from tools.campaigns.storage.auditor import Auditor
from tools.campaigns.storage.scenarios import Wrong


async def _audit(scenario: str, folder: Path, calls: Sequence[Call]) -> list[Wrong]:
    (folder / "pid").write_text(str(os.getpid()))
    match scenario:
        case "dies":
            os._exit(3)
        case "breaks":
            raise KeyError("nothing")
        case "hangs":
            await asyncio.sleep(60)
    return [Wrong("I1", f"{call.what} is lost") for call in calls]


@pytest.fixture
def auditor() -> Iterator[Auditor]:
    """An auditor with patience enough."""
    auditor = Auditor(60.0, _audit)
    yield auditor
    auditor.end()


def _pid(folder: Path) -> int:
    return int((folder / "pid").read_text())


def test_one_process_audits_many_folders_and_is_not_the_one_that_asks(auditor: Auditor, tmp_path: Path) -> None:
    assert auditor.ask("works", tmp_path, []) == []
    first = _pid(tmp_path)
    assert auditor.ask("works", tmp_path, []) == []
    assert _pid(tmp_path) == first != os.getpid()


def test_what_was_found_is_told_and_the_next_folder_gets_a_fresh_process(auditor: Auditor, tmp_path: Path) -> None:
    assert auditor.ask("works", tmp_path, [Call("append", "ok")]) == [Wrong("I1", "append is lost")]
    first = _pid(tmp_path)
    assert auditor.ask("works", tmp_path, []) == []
    assert _pid(tmp_path) != first


def test_an_audit_that_breaks_or_dies_is_a_violation_and_the_next_one_is_answered(
    auditor: Auditor, tmp_path: Path
) -> None:
    assert auditor.ask("breaks", tmp_path, []) == [Wrong("I8", "the audit broke: KeyError: 'nothing'")]
    assert auditor.ask("dies", tmp_path, []) == [Wrong("I8", "the audit ended with 3")]
    assert auditor.ask("works", tmp_path, []) == []


def test_an_audit_that_does_not_end_is_ended_and_is_a_violation(tmp_path: Path) -> None:
    auditor = Auditor(0.2, _audit)
    assert auditor.ask("hangs", tmp_path, []) == [Wrong("I9", "the audit does not end")]
    auditor.end()
