"""`verify` and whose keys the approvals are under: the log's own word, or that of the reader, who has pinned them."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Final

import pytest

from eventlog.audit.verify import PinnedApprover, Trust
from eventlog.signing.ed25519 import PrivateKey
from tests.command_line import HereCommandLine
from tests.proven_log import APPROVER, ProvenLog, approve, build, check, enrol_approver, propose_run
from tools.campaigns.storage.log_files import open_file

OTHER: Final = PrivateKey.from_seed(b"other".ljust(32, b"."))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> ProvenLog:
    return asyncio.run(build(tmp_path_factory.mktemp("original")))


@pytest.fixture
def world(original: ProvenLog, tmp_path: Path) -> ProvenLog:
    return original.copy_to(tmp_path / "copy")


def pinning(*pairs: tuple[str, PrivateKey]) -> Trust:
    return Trust(approvers=[PinnedApprover(approver=name, public=key.public) for name, key in pairs])


async def test_the_keys_of_approvals_are_self_declared_unless_they_are_pinned(world: ProvenLog) -> None:
    found = (await check(world.path)).approvals
    assert (found.verdict, found.details["keys"]) == ("ok", "self_declared")
    assert [each["key"] for each in found.details["approvals"]] == ["self_declared", None]
    found = (await check(world.path, pinning(("anna", APPROVER)))).approvals
    assert (found.verdict, found.details["keys"]) == ("ok", "pinned")
    assert [each["key"] for each in found.details["approvals"]] == ["pinned", None]


async def test_who_is_not_pinned_stays_self_declared_and_is_no_damage(world: ProvenLog) -> None:
    found = (await check(world.path, pinning(("otto", OTHER)))).approvals
    assert (found.verdict, found.details["keys"]) == ("ok", "self_declared")


async def test_another_key_that_the_log_enrols_for_a_pinned_approver_is_found(world: ProvenLog) -> None:
    """Whoever can write the log enrols a key of his own for anna, and approves with it: all of it verifies."""
    async with open_file(world.path) as log:
        await enrol_approver(log, "anna", OTHER)
        await approve(log, await propose_run(log, "r9"), "anna", OTHER)
    blind = (await check(world.path)).approvals
    assert (blind.verdict, blind.details["keys"]) == ("ok", "self_declared")
    found = (await check(world.path, pinning(("anna", APPROVER)))).approvals
    assert [each.reason for each in found.problems] == ["approver_unpinned"]
    assert "another key than you have pinned" in found.problems[0].message
    assert [each["key"] for each in found.details["approvals"]] == ["pinned", None, "self_declared"]
    both = (await check(world.path, pinning(("anna", APPROVER), ("anna", OTHER)))).approvals
    assert (both.verdict, both.details["keys"]) == ("ok", "pinned"), "an approver who has had two keys"


async def test_a_key_that_is_pinned_as_somebody_elses_is_found(world: ProvenLog) -> None:
    found = (await check(world.path, pinning(("eve", APPROVER)))).approvals
    assert [each.reason for each in found.problems] == ["approver_unpinned"]
    assert "as that of eve" in found.problems[0].message


def test_the_command_takes_pinned_keys_as_text_or_file_for_a_log(world: ProvenLog) -> None:
    cli = HereCommandLine(world.folder, "--db", "a.db")
    own, other = (b64encode(key.public).decode() for key in (APPROVER, OTHER))
    (world.folder / "anna.pub").write_text(own + "\n")
    for key in (own, "anna.pub"):
        shown = cli("--format", "human", "verify", "--approver", f"anna={key}", status=0).text
        assert "under a pinned key" in shown and "(pinned)" in shown, shown
    assert "(self_declared)" in cli("--format", "human", "verify", status=0).text
    assert "approver_unpinned" in cli("verify", "--approver", f"anna={other}", status=3).text
    assert "--approver" in cli("verify", "--approver", "anna=nothing", status=2).error
    assert cli("verify", "--run", "r1", "--approver", f"eve={own}", "--json", status=3).json["approvals"]["problems"]
