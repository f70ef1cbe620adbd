"""The audit behind a kill finds each thing that a kill must not leave, and nothing in a log that is as it was told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from eventlog import RecordedEvent
from tools.campaigns.kills.audit import audit, faults_of_groups
from tools.campaigns.kills.writers import Acknowledged, Writer

PAIR = Acknowledged("pair", first_position=1, version=2, size=2)
ALONE = Acknowledged("alone", first_position=3, version=3, size=1)


def event(position: int, group: str, index: int, of: int, version: int | None = None) -> RecordedEvent:
    return RecordedEvent(
        position=position,
        stream="s",
        version=version or position,
        type="noted",
        schema_version=1,
        event_id=position.to_bytes(16, "big"),
        recorded_at_us=0,
        actor="os:0",
        correlation_id=None,
        causation_id=None,
        body=b"{}",
        data={"group": group, "index": index, "of": of},
        is_known=False,
        leaf=bytes(32),
        prev_in_stream=bytes(32),
    )


ONE, TWO, THREE = event(1, "pair", 0, 2), event(2, "pair", 1, 2), event(3, "alone", 0, 1)


def found(events: Sequence[RecordedEvent], acknowledged: Sequence[Acknowledged] = (PAIR, ALONE)) -> list[str]:
    return [f"{fault.invariant} {fault.what.partition(':')[0]}" for fault in faults_of_groups(events, acknowledged)]


def test_groups_where_they_were_acknowledged_are_no_fault() -> None:
    assert found([ONE, TWO, THREE]) == []


def test_a_group_that_nobody_was_told_of_may_be_there() -> None:
    assert found([ONE, TWO, THREE], [ALONE]) == []


def test_an_acknowledged_group_that_is_not_stored_is_lost() -> None:
    assert found([ONE, TWO]) == ["I1 lost"]


@pytest.mark.parametrize("version", [4, 9])
def test_an_acknowledged_group_at_another_place_has_moved(version: int) -> None:
    assert found([ONE, TWO, event(4, "alone", 0, 1, version)]) == ["I1 moved"]


def test_a_group_of_which_some_events_are_missing_is_half_there() -> None:
    assert found([ONE, THREE], [ALONE]) == ["I4 half there"]


def test_a_group_with_another_event_in_its_middle_is_half_there() -> None:
    torn = [ONE, event(2, "alone", 0, 1), event(3, "pair", 1, 2)]
    assert found(torn, []) == ["I4 half there"]


def test_a_group_that_is_stored_twice_is_found() -> None:
    assert found([ONE, TWO, event(3, "pair", 0, 2), event(4, "pair", 1, 2)], []) == ["I4 half there"]


async def test_a_log_that_is_shorter_than_it_was_is_found(tmp_path: Path) -> None:
    (fault,) = (await audit(tmp_path / "log.db", [], after=0, head=5)).faults
    assert fault == ("I1", "the log ends at 0, and had 5 events")


async def test_a_file_that_is_no_log_is_found(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"no log" * 1000)
    (fault,) = (await audit(tmp_path / "log.db", [], after=0, head=0)).faults
    assert fault.invariant == "I10"


def test_what_a_killed_writer_was_told_is_in_the_log(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log.db", "s", random.Random(1))
    was_at_work = writer.wait_for_lines(3, 30)
    assert (was_at_work, writer.kill()) == (True, None)
    told = writer.acknowledged()
    audited = asyncio.run(audit(tmp_path / "log.db", told, after=0, head=0))
    assert len(told) >= 2
    assert (audited.faults, audited.head >= len(told)) == ([], True)


def test_a_writer_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"no log" * 1000)
    writer = Writer(tmp_path / "log.db", "s", random.Random(1))
    assert not writer.wait_for_lines(1_000_000, 30)
    assert str(writer.kill()).startswith("9: ")
