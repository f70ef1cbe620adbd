"""A run as it was: at a version, at a time, between two versions; and events by type."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import eventlog
from eventlog.audit.states import Change, changes, path_text, plain_state
from eventlog.audit.states import Path as StatePath
from eventlog.errors import InvalidInput
from eventlog.run import Run
from eventlog.times import parse_time, time_text
from tests.audit_runs import HOSTILE, approve, start
from tests.command_line import CommandLine, HereCommandLine, environment
from tests.strategies import exact_plain, identical


@pytest.fixture
def here(tmp_path: Path) -> HereCommandLine:
    return HereCommandLine(tmp_path, "--db", "a.db")


@pytest.fixture
def done(here: HereCommandLine) -> HereCommandLine:
    """A log with a run that was approved and executed: seven events."""
    approve(here)
    here("resume", "run-1", status=0)
    return here


def times(here: CommandLine, run_id: str = "run-1") -> list[str]:
    return [event["recorded_at"] for event in here("tail", run_id, "--json", status=0).json["events"]]


def shown(here: CommandLine, *words: str) -> Any:
    return here("runs", "show", "run-1", *words, "--json", status=0).json


class TestAtATime:
    def test_it_is_the_state_after_the_last_event_at_that_instant_or_before(self, done: HereCommandLine) -> None:
        all_times = times(done)
        for version, at in enumerate(all_times, start=1):
            last = max(number for number, other in enumerate(all_times, start=1) if other <= at)
            assert shown(done, "--at-time", at) == shown(done, "--at-version", str(last)), version

    def test_a_microsecond_earlier_the_event_is_not_there(self, done: HereCommandLine) -> None:
        approved_us = parse_time(shown(done)["decided_at"])
        assert shown(done, "--at-time", f"@{approved_us}")["status"] == "APPROVED"
        assert shown(done, "--at-time", f"@{approved_us - 1}")["status"] == "WAITING_FOR_USER"

    def test_any_zone_names_the_instant(self, done: HereCommandLine) -> None:
        at = shown(done)["decided_at"]
        local = f"{at.removesuffix('Z')}+00:00"
        assert shown(done, "--at-time", local) == shown(done, "--at-time", at)

    def test_the_future_is_now(self, done: HereCommandLine) -> None:
        assert shown(done, "--at-time", "9999-12-31T23:59:59Z") == shown(done)

    def test_before_the_first_event_it_is_refused_with_the_time_of_that(self, done: HereCommandLine) -> None:
        ended = done("runs", "show", "run-1", "--at-time", "2000-01-01T00:00:00Z", "--json", status=2)
        assert ended.json["error"] == "invalid_argument"
        assert times(done)[0] in ended.json["message"]

    @pytest.mark.parametrize("text", ["yesterday", "2026-11-30T02:15:00", "2026-11-30", "@", "@-1", "@1.5", "", "@٣"])
    def test_what_names_no_instant_is_refused(self, text: str, done: HereCommandLine) -> None:
        ended = done("runs", "show", "run-1", "--at-time", text, "--json", status=2)
        assert ended.json["error"] == "invalid_argument"

    def test_a_version_and_a_time_exclude_one_another(self, done: HereCommandLine) -> None:
        assert "exclude" in done("runs", "show", "run-1", "--at-time", "@1", "--at-version", "1", status=2).error

    @pytest.mark.parametrize(
        ("text", "at_us"),
        [
            ("1970-01-01T00:00:01Z", 1_000_000),
            ("1970-01-01T01:00:00.000001+01:00", 1),
            ("1969-12-31T23:59:59Z", -1_000_000),
            ("@17", 17),
        ],
    )
    def test_times_are_read_exactly(self, text: str, at_us: int) -> None:
        assert parse_time(text) == at_us

    def test_what_is_written_is_read_again(self) -> None:
        for at_us in (0, 1, 1_796_004_947_000_001, 253_402_300_799_999_999):
            assert parse_time(time_text(at_us)) == at_us

    def test_a_time_without_a_zone_says_what_to_add(self) -> None:
        with pytest.raises(InvalidInput, match="append Z for UTC"):
            parse_time("2026-11-30T02:15:00")


class TestDiff:
    def test_it_names_every_field_that_an_approval_changes_and_the_events(self, done: HereCommandLine) -> None:
        document = done("runs", "diff", "run-1", "3", "4", "--json", status=0).json
        found = {path_text(tuple(change["path"])): change for change in document["changes"]}
        assert found["status"] == {
            "path": ["status"],
            "kind": "changed",
            "before": "WAITING_FOR_USER",
            "after": "APPROVED",
        }
        assert found["votes[0]"]["kind"] == "added" and "before" not in found["votes[0]"]
        assert found.keys() >= {"approval", "approval_hash", "approval_request_id", "decided_by", "decided_at"}
        assert [event["type"] for event in document["events"]] == ["approval_recorded"]
        assert (document["from"]["version"], document["to"]["version"]) == (3, 4)

    def test_backwards_what_was_added_is_removed(self, done: HereCommandLine) -> None:
        there = done("runs", "diff", "run-1", "2", "7", "--json", status=0).json["changes"]
        back = done("runs", "diff", "run-1", "7", "2", "--json", status=0).json["changes"]
        turned = {"added": "removed", "removed": "added", "changed": "changed"}
        assert {(str(each["path"]), turned[each["kind"]]) for each in there} == {
            (str(each["path"]), each["kind"]) for each in back
        }

    def test_of_a_version_and_itself_there_is_nothing(self, done: HereCommandLine) -> None:
        document = done("runs", "diff", "run-1", "2", "2", "--json", status=0).json
        assert (document["changes"], document["events"]) == ([], [])
        assert "nothing" in done("runs", "diff", "run-1", "2", "2", "--format", "human", status=0).text

    def test_people_read_a_line_a_field_with_a_mark_where_it_is_cut(self, here: HereCommandLine) -> None:
        words = ("--action", "write_draft", "--args", json.dumps({"content": "x" * 500}), "--output", "o.txt")
        here("start", "run-1", *words, status=0)
        text = here("runs", "diff", "run-1", "1", "2", "--format", "human", status=0).text
        assert "~ request_id: - -> approval:run-1" in text
        assert "more characters" in text
        assert "proposal_recorded: " in text
        assert "x" * 500 in here("runs", "diff", "run-1", "1", "2", "--json", status=0).text

    def test_plain_is_a_field_a_line_between_tabs(self, done: HereCommandLine) -> None:
        lines = done("runs", "diff", "run-1", "2", "4", status=0).text.splitlines()
        assert "changed\tstatus\tWAITING_FOR_USER\tAPPROVED" in lines
        assert {line.count("\t") for line in lines} == {3}

    def test_hostile_texts_are_visible(self, here: HereCommandLine) -> None:
        words = ("--action", "write_draft", "--args", json.dumps({HOSTILE: HOSTILE}), "--output", "o.txt")
        here("start", "run-1", *words, status=0)
        for form in ("human", "plain"):
            text = here("runs", "diff", "run-1", "1", "2", "--format", form, status=0).text
            assert "\x1b" not in text and "\u202e" not in text and r"\u202e" in text

    def test_a_version_that_is_not_reached_and_a_run_that_is_not_there_are_refused(self, done: HereCommandLine) -> None:
        assert done("runs", "diff", "run-1", "1", "8", "--json", status=2).json["error"] == "invalid_argument"
        assert done("runs", "diff", "nope", "1", "2", "--json", status=2).json["error"] == "unknown_run:nope"

    def test_a_workflow_is_compared_down_to_its_steps(self, here: HereCommandLine) -> None:
        async def double(number: int) -> int:
            return 2 * number

        @eventlog.workflow
        async def counting(run: eventlog.RunContext) -> int:
            return await run.step("a.b", double, 2)

        async def count() -> int:
            async with eventlog.open(here.folder / "a.db") as log:
                await eventlog.Runner(log, workflows=[counting]).start(counting, "run-1")
                return (await log.read_stream("run:run-1")).version

        last = str(asyncio.run(count()))
        document = here("runs", "diff", "run-1", "1", last, "--json", status=0).json
        found = {path_text(tuple(change["path"])): change for change in document["changes"]}
        assert found['progress.steps["a.b"]']["after"]["value"] == 4
        assert found["progress.value"]["after"] == 4
        assert found["status"]["after"] == "COMPLETED"


class TestChanges:
    @settings(max_examples=50, deadline=None)
    @given(exact_plain, exact_plain)
    def test_applied_to_the_one_state_they_give_the_other(self, before: Any, after: Any) -> None:
        assert identical(patched(before, changes(before, after)), after, in_order=False)

    @settings(deadline=None)
    @given(exact_plain)
    def test_a_state_does_not_differ_from_itself(self, state: Any) -> None:
        assert changes(state, json.loads(json.dumps(state))) == []

    @pytest.mark.parametrize(
        ("before", "after"), [(1, True), (1, 1.0), (0.0, -0.0), (0, False), (None, 0), ("", None), ([], {})]
    )
    def test_values_of_different_types_differ(self, before: Any, after: Any) -> None:
        assert changes({"x": before}, {"x": after}) == [Change(path=("x",), kind="changed", before=before, after=after)]

    def test_every_field_of_the_fold_is_in_the_state(self) -> None:
        names = {name.removesuffix("_us") for name in Run.__struct_fields__}
        assert plain_state(Run(run_id="run-1")).keys() == names

    @pytest.mark.parametrize(
        ("path", "text"),
        [(("a", "b"), "a.b"), (("a", 0, "b"), "a[0].b"), (("a", "b.c"), 'a["b.c"]'), (("a b",), '["a b"]')],
    )
    def test_paths_are_unambiguous(self, path: StatePath, text: str) -> None:
        assert path_text(path) == text


def patched(before: Any, found: list[Change]) -> Any:
    """Return the state with the changes made in it, the last first, as places in lists go away from the end."""
    state = {"": json.loads(json.dumps(before))}
    for change in reversed(found):
        *above, last = ("", *change.path)
        place: Any = state
        for step in above:
            place = place[step]
        if change.kind == "removed":
            del place[last]
    for change in found:
        *above, last = ("", *change.path)
        place = state
        for step in above:
            place = place[step]
        if change.kind == "added" and isinstance(place, list):
            place.append(change.after)
        elif change.kind != "removed":
            place[last] = change.after
    return state[""]


class TestTailByType:
    def test_several_patterns_are_alternatives(self, done: HereCommandLine) -> None:
        words = ("tail", "--type", "action_*", "--type", "approval_recorded")
        assert [line.split("\t")[4] for line in done(*words, status=0).text.splitlines()] == [
            "approval_recorded",
            "action_executed",
        ]

    def test_they_go_with_a_position_and_a_run(self, done: HereCommandLine) -> None:
        start(done, "run-2", "other.txt")
        words = ("tail", "run-2", "--after", "8", "--type", "*_saved", "--type", "proposal_*")
        assert [event["type"] for event in done(*words, "--json", status=0).json["events"]] == ["proposal_recorded"]

    def test_they_go_with_following(self, done: HereCommandLine) -> None:
        argv = CommandLine(done.folder, "--db", "a.db").argv(
            "tail", "-f", "--after", "3", "--type", "action_*", "--type", "approval_*", "--format", "jsonl"
        )
        with subprocess.Popen(argv, cwd=done.folder, env=environment(), stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            try:
                found = [json.loads(following.stdout.readline())["type"] for _ in range(2)]
                done("resume", "run-1", status=0)
                found.append(json.loads(following.stdout.readline())["type"])
            finally:
                following.terminate()
        assert found == ["approval_recorded", "action_executed", "action_replayed"]
