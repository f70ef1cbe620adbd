"""What `eventlog.open` is given wrongly is refused by the name of the argument, before a file is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import Expect, InvalidInput, NewEvent
from eventlog.stores.subject_keys import SubjectKeys
from tests.signers import MemorySigner
from tools.campaigns.storage.log_files import open_file

WRONG: Final[dict[str, tuple[str, Any, str]]] = {
    "signer-text": ("signer", "log.key", "LocalSigner('log.key')"),
    "signer-class": ("signer", MemorySigner, "LocalSigner("),
    "signer-number": ("signer", 1, "RemoteSigner("),
    "keys-text": ("subject_keys", "folder", "SubjectKeys('folder', wrapping_key="),
    "keys-number": ("subject_keys", 1, "SubjectKeys("),
    "scanner-text": ("scanner", "x", "Scanner("),
    "scanner-true": ("scanner", True, "Scanner("),
    "restored-number": ("restored", 1, "a text"),
    "restored-empty": ("restored", " ", "is empty"),
    "restored-long": ("restored", "x" * 1001, "at most 1000"),
    "seconds-text": ("head_every_s", "a", "seconds"),
    "seconds-nan": ("head_every_s", float("nan"), "seconds"),
    "seconds-infinite": ("head_every_s", float("inf"), "seconds"),
    "seconds-true": ("head_every_s", True, "seconds"),
    "events-text": ("head_every_events", "a", "1 or more"),
    "events-none": ("head_every_events", 0, "1 or more"),
    "events-fraction": ("head_every_events", 1.5, "1 or more"),
    "views-text": ("views", "runs", "a list of views"),
    "views-number": ("views", 3, "a list of views"),
    "views-other": ("views", [3], "SqliteView("),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_argument_of_open_is_named_with_what_to_give(tmp_path: Path, case: str) -> None:
    name, value, instead = WRONG[case]
    given: dict[str, Any] = {name: value}
    with pytest.raises(InvalidInput) as refused:
        eventlog.open(tmp_path / "log.db", **given)
    assert (refused.value.code, refused.value.details["argument"]) == ("invalid_argument", name)
    assert instead in str(refused.value)
    assert os.listdir(tmp_path) == []


async def test_right_arguments_open_a_log(tmp_path: Path) -> None:
    keys = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32))
    async with open_file(
        tmp_path / "log.db", signer=MemorySigner(), subject_keys=keys, scanner=None, head_every_s=1, views=()
    ) as log:
        await log.append("a", [NewEvent("noted", 1)], expect=Expect.any(), subject="ann")


async def test_log_in_memory_takes_no_keys_of_subjects_and_keeps_subjects_off_any_disk(tmp_path: Path) -> None:
    keys: Any = SubjectKeys(tmp_path / "keys", wrapping_key=bytes(32))
    given: dict[str, Any] = {"subject_keys": keys}
    with pytest.raises(InvalidInput) as refused:
        eventlog.open("memory:", **given)
    assert refused.value.details["argument"] == "subject_keys"
    async with eventlog.open("memory:") as log:
        await log.append("a", [NewEvent("noted", 1)], expect=Expect.any(), subject="ann")
        assert not await log.is_sealed("a")
