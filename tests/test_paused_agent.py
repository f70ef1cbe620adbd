"""An article's agent that pauses for hours: every step of it in a real process, which ends at every place it can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventlog import Runner
from eventlog.errors import Refused
from tests import paused_agent
from tests.command_line import CommandLine
from tests.paused_agent import LARGE_BYTES, RUN, World, open_agent, wrong_with
from tools.campaigns.processes import child
from tools.campaigns.storage.log_files import assert_whole

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PROMISES = ("checkable", "keyed", "opaque")
WINDOW = "effect.after=kill"
"""After the tool's success, before its record."""


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def started(world: World, promise: str = "checkable", size_bytes: int = 10) -> dict[str, Any]:
    snapshot: dict[str, Any] = child.run(paused_agent.starts, world.folder, promise, size_bytes).result
    return snapshot


def approved(world: World) -> None:
    assert child.run(paused_agent.approves, world.folder, "2").result == "RUNNING"


def resumed(world: World, promise: str = "checkable", failpoint: str = "") -> dict[str, Any]:
    ended = child.run(paused_agent.resumes, world.folder, promise, "2", failpoint)
    if failpoint:
        assert ended.returncode == -9, ended.stderr
        return {}
    result: dict[str, Any] = ended.result
    return result


def shell(world: World) -> CommandLine:
    """Return the command line on the agent's log: processes that know neither its workflow nor its actions."""
    return CommandLine(world.folder, "--db", world.log.name)


async def types(world: World) -> list[str]:
    log, clock = open_agent(world.folder, 2)
    async with log:
        await assert_whole(log)
        return [event.type for event in await Runner(log, clock=clock).trace(RUN)]


# ── the article ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size_bytes", [10, LARGE_BYTES])
async def test_a_run_pauses_in_one_process_is_approved_in_a_second_and_only_applies_the_patch_in_a_third(
    world: World, size_bytes: int
) -> None:
    snapshot = started(world, size_bytes=size_bytes)
    shown = shell(world)("runs", "show", RUN, "--json", status=0).json
    assert {name: shown[name] for name in snapshot} == snapshot
    patch = snapshot["pending_writes"].pop("prepare_patch")
    assert snapshot == {
        "run_id": "r-42",
        "state_version": snapshot["state_version"],
        "status": "WAITING_FOR_USER",
        "committed": ["search_logs"],
        "pending_writes": {},
        "waiting": {"type": "approval", "node_id": "apply_patch", "approval_id": "approval:r-42:apply_patch"},
    }
    before = world.facts()
    maker = next(pid for pid, *fact in before if fact == ["called", "prepare_patch"])
    assert world.receipts() == []
    if size_bytes == LARGE_BYTES:
        scheme, _, digest = patch.partition("://")
        assert (scheme, len(digest)) == ("artifact", 64)
    else:
        assert patch == {"of": "INC-7", "by": maker, "lines": "+" * size_bytes}

    approved(world)
    assert world.facts() == before, "who approves runs nothing"

    outcome = resumed(world)
    assert outcome["status"] == "COMPLETED"
    assert outcome["value"] == {
        "patch_by": maker,
        "applied_to": "INC-7",
        "found": f"INC-7 began in process {maker}",
    }
    assert (world.calls("search_logs"), world.calls("prepare_patch")) == (1, 1)
    assert wrong_with(world) == []
    assert (await types(world)).count("action_executed") == 1
    assert shell(world)("verify", status=0).text.count("ok") >= 3


async def test_a_paused_run_is_not_applied_before_anybody_has_approved_it(world: World) -> None:
    started(world)
    assert resumed(world) == {"refused": "approval_required"}
    assert world.receipts() == []
    approved(world)
    assert resumed(world)["status"] == "COMPLETED"
    assert wrong_with(world) == []


# ── after the tool's success, before its record ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("promise", "last"), [("checkable", "action_recovered"), ("keyed", "action_executed")], ids=["asked", "by its key"]
)
async def test_an_effect_whose_record_was_lost_is_found_out_and_not_repeated(
    world: World, promise: str, last: str
) -> None:
    """run-10 (google/adk-python discussion #8039): crash between receipt and result."""
    started(world, promise)
    approved(world)
    resumed(world, promise, WINDOW)
    assert len(world.receipts()) == 1
    assert resumed(world, promise)["status"] == "COMPLETED"
    assert wrong_with(world) == []
    recorded = await types(world)
    assert [type for type in recorded if type in ("action_executed", "action_recovered")] == [last]


async def test_an_opaque_effect_whose_record_was_lost_waits_for_a_person_and_is_not_repeated(world: World) -> None:
    started(world, "opaque")
    approved(world)
    resumed(world, "opaque", WINDOW)
    assert resumed(world, "opaque")["status"] == "OUTCOME_UNKNOWN"
    assert resumed(world, "opaque") == {"refused": "outcome_unknown"}
    log, clock = open_agent(world.folder, 2)
    async with log:
        runner = Runner(log, clock=clock)
        with pytest.raises(Refused):
            await runner.approve(RUN, (await runner.state(RUN)).progress.requests["apply_patch"].proposal_hash)
        await runner.reconcile(RUN, "executed", evidence="its receipt", result={"applied_to": "INC-7"}, actor="ann")
    outcome = resumed(world, "opaque")
    assert (outcome["status"], outcome["value"]["applied_to"]) == ("COMPLETED", "INC-7")
    assert wrong_with(world) == []


# ── a crash at every append ───────────────────────────────────────────────────────────────────────────────────────────


def campaign(*words: str) -> dict[str, Any]:
    report: dict[str, Any] = child.run(paused_agent.campaign, *words, timeout_s=580).result
    print("campaign", *words, report)
    return report


@pytest.mark.campaign
@pytest.mark.parametrize("promise", PROMISES)
def test_a_crash_at_any_append_repeats_no_step_and_no_effect_and_changes_no_result(promise: str, is_long: bool) -> None:
    """Ended right before and right after each append, and taken on by new processes until it completes.

    Killed before it with a patch that is an artifact, and exited after it with a small one; `--long` has both sides in
    both ways with both patches.
    """
    report = campaign(promise, "", "long" if is_long else "short")
    assert report["wrong"] == []
    assert report["plays"] == report["crashes"] == sum(report["appends"]) * (4 if is_long else 1)
    assert sum(report["appends"]) >= 20
    unknown = report["ends"].get("reconciled", 0)
    assert unknown > 0 if promise == "opaque" else unknown == 0


@pytest.mark.campaign
@pytest.mark.long
@pytest.mark.parametrize("promise", PROMISES)
def test_a_second_crash_at_any_of_the_next_appends_changes_nothing_either(promise: str) -> None:
    report = campaign(promise, "", "double")
    assert report["wrong"] == []
    assert report["crashes"] > 1.5 * report["plays"]


@pytest.mark.campaign
@pytest.mark.parametrize("promise", ["checkable", "keyed"])
def test_a_receiver_that_forgets_what_it_did_is_reported_by_the_campaign(promise: str, is_long: bool) -> None:
    """The campaign ends with what it finds first; with `--long` it goes on to its end."""
    report = campaign(promise, "forgetful", "long" if is_long else "first")
    assert report["wrong"]
    assert all(each.endswith("2 effects") for each in report["wrong"])


@pytest.mark.campaign
def test_an_engine_that_stores_outputs_after_it_has_handed_them_out_is_reported_by_the_campaign(is_long: bool) -> None:
    """The campaign ends with what it finds first; with `--long` it goes on to its end."""
    report = campaign("checkable", "late", "long" if is_long else "first")
    assert "kill before 2: search_logs was called again" in report["wrong"]
    assert "kill before 2: search_logs was seen with another output" in report["wrong"]
