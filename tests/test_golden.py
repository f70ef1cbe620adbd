"""Logs that earlier versions wrote keep opening, verifying and folding to the same state, for ever."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.entry import parse
from eventlog.errors import StoreUnavailable
from eventlog.events import LOG_EVENTS, RUN_EVENTS
from eventlog.log import Expect
from eventlog.stores.sqlite.schema import FORMAT_VERSION
from eventlog.testing.log_contract import assert_sound
from tools import golden
from tools.campaigns.golden.entries import read_rows, root_of, wrong_leaves
from tools.campaigns.golden.replays import difference
from tools.golden_proof import describe_proof

VERSIONS = sorted(path.stem for path in golden.GOLDEN.glob("v*.db"))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """The name of one golden format."""
    name: str = request.param
    return name


@pytest.fixture
def expected(version: str) -> dict[str, Any]:
    """What was read in the golden log when it was made."""
    found: dict[str, Any] = json.loads((golden.GOLDEN / f"{version}.json").read_text(encoding="utf-8"))
    return found


@pytest.fixture
def path(version: str, tmp_path: Path) -> Iterator[Path]:
    """A copy of the golden log: the original is only ever read."""
    original = golden.GOLDEN / f"{version}.db"
    before = hashlib.sha256(original.read_bytes()).hexdigest()
    copy = tmp_path / "log.db"
    shutil.copyfile(original, copy)
    yield copy
    assert hashlib.sha256(original.read_bytes()).hexdigest() == before


def test_every_format_up_to_the_current_one_has_golden_files() -> None:
    assert [f"v{number}" for number in range(1, FORMAT_VERSION + 1)] == VERSIONS


@pytest.mark.parametrize("is_read_only", [False, True])
async def test_a_golden_log_holds_the_same_events_and_folds_to_the_same_state(
    path: Path, expected: dict[str, Any], is_read_only: bool
) -> None:
    await migrate(path)
    async with eventlog.open(path, registry=golden.GOLDEN_REGISTRY, is_read_only=is_read_only) as log:
        found = json.loads(json.dumps({**await golden.describe(log), "proof": await describe_proof(log)}))
        assert log.store_id.hex() == expected["store_id"]
        assert log.facts.format_version == FORMAT_VERSION
    if expected["format"] == 1:
        del found["proof"]
    assert difference(found, {name: expected[name] for name in found}) is None


def test_the_comparison_names_the_first_place_that_differs_and_passes_over_new_fields() -> None:
    then: dict[str, Any] = {"runs": [{"a": 1}, {"a": True}]}
    assert difference({"runs": [{"a": 1, "new": 2}, {"a": True}], "more": 1}, then) is None
    assert difference({"runs": [{"a": 1}, {"a": 1}]}, then) == "$.runs[1].a is 1 now, and was True"
    assert difference({"runs": [{"a": 1}, {}]}, then) == "$.runs[1].a is gone"
    assert difference({"runs": [{"a": 1}]}, then) is not None


async def migrate(path: Path) -> None:
    """Bring the log to the current format, as whoever opens it for writing does."""
    async with eventlog.open(path, registry=golden.GOLDEN_REGISTRY):
        pass


@pytest.mark.parametrize("version", VERSIONS[:-1], indirect=True)
async def test_a_golden_log_of_an_older_format_is_not_read_before_it_is_migrated(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as refused:
        async with eventlog.open(path, is_read_only=True):
            pass
    assert refused.value.code == "migration_required"
    assert path.read_bytes() == before


async def test_a_golden_log_verifies(path: Path, expected: dict[str, Any]) -> None:
    async with eventlog.open(path, registry=golden.GOLDEN_REGISTRY) as log:
        assert await assert_sound(log) == len(expected["events"])
        assert await log.check_file() == []


async def test_a_golden_log_can_be_gone_on_with(path: Path, expected: dict[str, Any]) -> None:
    async with eventlog.open(path, registry=golden.GOLDEN_REGISTRY) as log:
        version = expected["stock"]["version"]
        result = await log.append("stock-7", [golden.Refilled(1, "box")], expect=Expect.at(version))
        assert (result.version, result.last_position) == (version + 1, expected["head"][0] + 1)
        (stored,) = [event async for event in log.read("stock-7", after=version)]
        before = [event for event in expected["events"] if event["stream"] == "stock-7"][-1]
        assert stored.prev_in_stream.hex() == before["leaf"]
        counter, _ = await eventlog.fold(log, "stock-7", golden.Counter, golden.count)
        assert counter.total == expected["stock"]["total"] + 1
        assert await assert_sound(log) == result.last_position


# ── every leaf once more, by an encoder that shares nothing with the engine's ────────────────────────────────────────


def test_every_leaf_of_a_golden_log_is_the_hash_of_its_entry(path: Path, expected: dict[str, Any]) -> None:
    assert list(wrong_leaves(path, expected["events"])) == []
    rows, _ = read_rows(path)
    assert len(rows) == len(expected["events"]) == expected["head"][0]
    assert expected["head"][1] == rows[-1]["leaf"].hex()
    for row, event in zip(rows, expected["events"], strict=True):
        body: bytes | None = row["body"]
        assert body is None or isinstance(row["text"], bytes if row["body_kind"] else str)
        assert event["body"] == ("" if body is None or row["body_kind"] else body.decode("utf-8"))


def test_a_leaf_that_is_another_would_be_seen(path: Path, expected: dict[str, Any]) -> None:
    """The negative control of the encoder: one event's frozen leaf, and nothing else, is another one."""
    events = [*expected["events"]]
    events[7] = {**events[7], "leaf": "00" * 32}
    assert list(wrong_leaves(path, events)) == ["the leaf at position 8 is not the hash of its entry"]


# ── the tree once more, as RFC 6962 defines it ───────────────────────────────────────────────────────────────────────


async def test_the_tree_of_a_golden_log_is_that_of_its_leaves(path: Path, expected: dict[str, Any]) -> None:
    await migrate(path)
    leaves = [bytes.fromhex(event["leaf"]) for event in expected["events"]]
    async with eventlog.open(path, registry=golden.GOLDEN_REGISTRY, is_read_only=True) as log:
        found = await describe_proof(log)
        entries = [entry async for entry in log.read_entries()]
    assert [hashlib.sha256(b"\x00" + entry.entry).digest() for entry in entries] == leaves
    assert [parse(entry.entry).position for entry in entries] == list(range(1, len(leaves) + 1))
    assert found["roots"] == [[size, root_of(leaves[:size]).hex()] for size, _ in found["roots"]]
    assert found["tree"][0] == found["roots"][-1][0] == len(leaves)
    tiles = [root_of(leaves[at : at + 256]).hex() for at in range(0, len(leaves) - 255, 256)]
    assert found["tiles"] == [[number, root] for number, root in enumerate(tiles)]
    assert expected["format"] == 1 or (tiles and len(found["heads"]) == 2 and len(found["log_ids"]) == 2)


# ── the golden files themselves ──────────────────────────────────────────────────────────────────────────────────────


def test_a_golden_log_holds_every_event_of_a_run_and_events_of_users(expected: dict[str, Any]) -> None:
    kinds = {event["type"] for event in expected["events"]}
    assert {*RUN_EVENTS, "barrier_recorded"} <= kinds
    assert expected["format"] == 1 or set(LOG_EVENTS) <= kinds
    assert {"stock_refilled", "stock_counted", "stock_ordered", "note_taken"} <= kinds
    assert {run["status"] for run in expected["runs"].values()} == {
        "COMPLETED",
        "REJECTED",
        "OUTCOME_UNKNOWN",
        "WAITING_FOR_USER",
        "APPROVED",
        "CANCELLED",
        "COMPENSATED",
        "EXPIRED",
        "FAILED",
        "RUNNING",
        "WAITING",
    }
    assert {event["is_known"] for event in expected["events"]} == {True, False}


def test_a_golden_file_is_never_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    names = [golden.GOLDEN / f"v{FORMAT_VERSION}{ending}" for ending in (".db", ".json")]
    before = [path.read_bytes() for path in names]
    assert golden.main() == 1
    assert "never made again" in capsys.readouterr().err
    assert [path.read_bytes() for path in names] == before


async def test_what_the_tool_makes_today_reads_like_the_golden_log(tmp_path: Path) -> None:
    expected = json.loads((golden.GOLDEN / f"v{FORMAT_VERSION}.json").read_text(encoding="utf-8"))
    made = await golden.make(tmp_path / "log.db")
    random = {"event_id", "causation_id", "leaf", "prev_in_stream"}
    about_random = {"payload_erased", "subject_erased", "log_restored"}
    for now, then in zip(made["events"], expected["events"], strict=True):
        if "op_key" in then["body"] or then["type"] in about_random:  # it is made from the random id of the store
            now, then = {**now, "body": ""}, {**then, "body": ""}
        assert {name: now[name] for name in now.keys() - random} == {name: then[name] for name in then.keys() - random}
    assert made["stock"] == expected["stock"]
