"""A workflow of twenty steps survives a crash at each of its appends; and broken ones, and a broken engine, do not."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import ApprovalRejected, Call, Policy, Promise, Retry, RunContext, StepFailed, WaitTimedOut
from eventlog.events import RunEvent, Waiting
from eventlog.progress import request_of
from eventlog.runtime.session import Session
from eventlog.testing.crashes import CrashReport, Scenario, Script, World, crash_after_every_event
from eventlog.testing.ledger import Entry, violations
from eventlog.testing.life import Ending
from eventlog.testing.nursery import Nursery, Order

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]

HOUR_S: Final = 3600


# ── the world outside, in files that no crash takes back ─────────────────────────────────────────────────────────────


def note(path: Path, line: str) -> None:
    """Add a line, as one write."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (line + "\n").encode())
    finally:
        os.close(file)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Orders:
    """A receiver that can be asked: it knows every op_key under which it was sent something."""

    name = "order_parts"
    promise = Promise.CHECKABLE

    def __init__(self, book: Path) -> None:
        self.book = book

    def check(self, call: Call) -> None:
        """Refuse nothing."""

    async def execute(self, call: Call) -> eventlog.Executed:
        note(self.book, f"{call.op_key} {json.dumps(call.args)}")
        await asyncio.sleep(0)
        return eventlog.Executed(result={"ordered": call.args["parts"]})

    async def inspect(self, call: Call) -> eventlog.Recovered | eventlog.Absent:
        known = any(line.startswith(call.op_key) for line in lines(self.book))
        return eventlog.Recovered(result={"ordered": call.args["parts"]}) if known else eventlog.Absent()


class Crew:
    """What the steps do. Its moods are in a file, so that a new process finds them as they were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def look(self, what: str) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"seen": what}

    def measure(self, what: str) -> int:
        return len(what)

    async def flaky(self) -> str:
        """Fail twice, whatever process asks."""
        note(self.folder / "flaky", "asked")
        if len(lines(self.folder / "flaky")) <= 2:
            raise ConnectionError("not yet")
        return "at last"

    async def hopeless(self) -> None:
        raise ValueError("never")


# ── the workflow ─────────────────────────────────────────────────────────────────────────────────────────────────────

PATIENT: Final = Retry(attempts=9, first_delay_s=1, max_delay_s=4)


@eventlog.workflow
async def inspect_site(run: RunContext, site: str) -> dict[str, Any]:
    seen = await run.step("look", CREW.look, site)
    await run.sleep(60)
    measured, _ = await run.gather(run.step("measure", CREW.measure, site), run.step("look", CREW.look, "roof"))
    photo = await run.wait_for_signal("photo", type=str)
    return {"seen": seen["seen"], "measured": measured, "photo": photo}


@eventlog.workflow
async def archive(run: RunContext, number: str) -> str:
    await run.step("look", CREW.look, number)
    return "archived"


@eventlog.workflow
async def repair(run: RunContext, house: str) -> dict[str, Any]:
    began: datetime = await run.now()
    number = await run.uuid()
    luck = await run.random()
    plan = await run.step("look", CREW.look, house)
    tools, size, weather = await run.gather(
        run.step("tools", CREW.measure, house),
        run.step("size", CREW.measure, plan["seen"]),
        run.step("weather", CREW.flaky, retry=PATIENT),
    )
    try:
        await run.gather(run.step("hopeless", CREW.hopeless), run.step("notes", CREW.look, "notes"))
    except StepFailed as error:
        why = error.error_type
    site = await run.child(inspect_site, house)
    for day in range(3):
        await run.step("day", CREW.measure, "d" * day, key=str(day))
    await run.sleep(2 * HOUR_S)
    go = await run.wait_for_signal("go", timeout_s=10 * HOUR_S)
    ordered, _ = await run.gather(
        run.act("order_parts", {"parts": size}, output="shop"), run.step("tidy", CREW.look, "site")
    )
    painted = await run.act("paint", {"colour": go["colour"]}, output="front door")
    booked = await run.act("book_van", {"day": "monday"}, output="garage")
    checked = await run.gather(*(run.step("check", CREW.measure, "c" * each) for each in range(3)))
    handed = await run.hand_off(archive, str(number))
    assert began <= await run.now() and 0 <= luck < 1
    return {
        "tools": tools, "weather": weather, "why": why, "site": site, "ordered": ordered, "painted": painted,
        "booked": booked, "checked": list(checked), "handed": handed,
    }  # fmt: skip


CREW = Crew(Path())


def site_in(folder: Path) -> Scenario:
    """The whole of it in one folder."""
    global CREW
    CREW = Crew(folder)

    @eventlog.action("paint", promise="opaque")
    async def paint(call: Call) -> str:
        note(folder / "paint", call.op_key)
        await asyncio.sleep(0)
        return f"painted {call.args['colour']}"

    @eventlog.action("book_van", promise="keyed", key_lifetime_s=1e6)
    async def book_van(call: Call) -> str:
        """A receiver that knows its keys takes a repeated request for the same one."""
        if call.op_key not in lines(folder / "van"):
            note(folder / "van", call.op_key)
        return "van"

    def receipts() -> Sequence[str]:
        return [name for name in ("orders", "paint", "van") for _ in lines(folder / name)]

    return Scenario(
        workflow=repair,
        args=["12 Elm Street"],
        workflows=[inspect_site, archive],
        actions=[Orders(folder / "orders"), paint, book_van],
        policies={"order_parts": Policy(required=2), "book_van": Policy(auto=True)},
        script=Script(signals={"go": {"colour": "green"}, "photo": "front.png"}),
        receipts=receipts,
    )


def show(report: CrashReport) -> None:
    print(f"\n{report}")


async def test_twenty_steps_survive_a_crash_at_every_append(tmp_path: Path, is_long: bool) -> None:
    report = await crash_after_every_event(site_in, folder=tmp_path, pairs=500 if is_long else 5)
    show(report)
    assert report.appends > 60
    assert report.crashes >= 2 * report.appends
    assert report.repeated > 0, "no crash fell between a call and its record, so nothing was shown"
    assert not list(tmp_path.iterdir()), "what went well leaves nothing behind"


async def test_twenty_steps_survive_sigkill_at_every_append(tmp_path: Path, is_long: bool) -> None:
    """Behind every third of them, where the test above crashes at all; with `--long` on both sides of each."""
    every, pairs = (1, 200) if is_long else (3, 3)
    report = await crash_after_every_event(
        site_in, folder=tmp_path, in_processes=True, also_before=is_long, every=every, pairs=pairs
    )
    show(report)
    assert report.appends > 60
    assert report.crashes >= report.appends // every


# ── programs that nobody has thought of ──────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Part:
    """A part of a program: what it does, a number of its own, and the parts that it is made of."""

    kind: str
    number: int
    parts: tuple[Part, ...] = ()


LEAVES: Final = ("step", "flaky", "third", "order", "paint", "refused", "signal", "late", "large")
ALONE: Final = ("sleep", "uuid", "child")
"""What has no key of its own, so that its place in the program has to tell it apart."""
NODES: Final = ("gather", "tasks", "sequence", "caught")


def program(chance: random.Random, numbers: Iterator[int], depth: int, *, is_alone: bool) -> Part:
    """Return a program that is made by chance."""
    kind = chance.choice((*LEAVES, *(ALONE if is_alone else ()), *(NODES if depth else ())))
    if kind not in (*NODES, "child"):
        return Part(kind, next(numbers))
    alone = kind == "child" or (kind == "sequence" and is_alone)
    parts = [
        program(chance, numbers, max(depth - 1, 0), is_alone=alone and depth > 0) for _ in range(chance.randint(1, 3))
    ]
    if kind == "caught":
        parts.append(Part("fails", next(numbers)))
    return Part(kind, next(numbers), tuple(parts))


class Performer:
    """Performs programs, in one folder."""

    def __init__(self, folder: Path, whole: Part) -> None:
        self.folder = folder
        self.by_number = {part.number: part for part in self.parts_of(whole)}

        @eventlog.workflow
        async def inner(run: RunContext, number: int) -> list[Any]:
            return [await self.perform(run, part) for part in self.by_number[number].parts]

        @eventlog.workflow
        async def outer(run: RunContext) -> Any:
            return await self.perform(run, whole)

        self.inner, self.outer = inner, outer

    def parts_of(self, part: Part) -> Iterator[Part]:
        yield part
        for each in part.parts:
            yield from self.parts_of(each)

    def works_at(self, attempt: int, number: int) -> str:
        """Raise as often as it takes, whatever process asks."""
        note(self.folder / f"asked-{number}", "asked")
        if len(lines(self.folder / f"asked-{number}")) < attempt:
            raise ValueError("not yet")
        return "works"

    def never_works(self) -> None:
        raise ValueError("never")

    async def perform(self, run: RunContext, part: Part) -> Any:
        name, key, inside = f"{part.kind}-{part.number}", str(part.number), part.parts
        match part.kind:
            case "step":
                return await run.step(name, Crew(self.folder).look, name)
            case "large":
                return len(await run.step(name, lambda: "x" * 70_000))
            case "fails":
                return await run.step(name, self.never_works)
            case "flaky":
                return await run.step(name, self.works_at, 3, part.number, retry=Retry(attempts=50, first_delay_s=1))
            case "third":
                return await run.step(name, self.works_at, 3, part.number)
            case "order":
                return await run.act("order_parts", {"parts": part.number}, output="shop", key=key)
            case "paint":
                return await run.act("paint", {"colour": name}, output="door", key=key)
            case "refused":
                with suppress(ApprovalRejected):
                    await run.act("refused", {}, output="nobody", key=key)
            case "signal":
                return await run.wait_for_signal(name)
            case "late":
                with suppress(WaitTimedOut):
                    await run.wait_for_signal(f"nobody sends {name}", timeout_s=5)
            case "sleep":
                await run.sleep(HOUR_S)
            case "uuid":
                return str(await run.uuid())
            case "child":
                return await run.child(self.inner, part.number, key=key)
            case "gather":
                return list(await run.gather(*(self.perform(run, each) for each in inside)))
            case "tasks":
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self.perform(run, each)) for each in inside]
                return [task.result() for task in tasks]
            case "caught":
                with suppress(StepFailed):
                    await run.gather(*(self.perform(run, each) for each in inside))
            case "sequence":
                return [await self.perform(run, each) for each in inside]
        return None


def made_by(seed: int) -> Callable[[Path], Scenario]:
    """Return what makes the scenario of one program."""

    def make(folder: Path) -> Scenario:
        chance, numbers = random.Random(seed), itertools.count()
        parts = [program(chance, numbers, 2, is_alone=True) for _ in range(3)]
        performer = Performer(folder, Part("sequence", next(numbers), tuple(parts)))
        site = site_in(folder)
        refused = eventlog.action("refused")(never_done)
        return Scenario(
            workflow=performer.outer,
            workflows=[performer.inner],
            actions=[*site.actions, refused],
            script=Script(
                signals={f"signal-{number}": number for number in range(200)}, decisions={"refused": "reject"}
            ),
            receipts=lambda: [*lines(folder / "orders"), *lines(folder / "paint")],
            resumes=30,
        )

    return make


async def never_done(call: Call) -> None:
    raise AssertionError("nobody has approved this")


async def test_programs_made_by_chance_survive_a_crash_at_every_append(is_long: bool) -> None:
    seed = random.SystemRandom().getrandbits(32)
    for each in range(seed, seed + (200 if is_long else 2)):
        try:
            show(await crash_after_every_event(made_by(each), pairs=3))
        except AssertionError as error:
            raise AssertionError(f"seed {each}: {error}") from error


async def test_people_who_change_their_minds_come_to_the_same(tmp_path: Path) -> None:
    @eventlog.action("paint", promise="opaque")
    async def paint(call: Call) -> str:
        await asyncio.sleep(0)
        return f"painted {call.args['colour']}"

    @eventlog.workflow
    async def painting(run: RunContext) -> list[str]:
        return [
            await run.act("paint", {"colour": "red"}, output="door"),
            await run.act("paint", {"colour": "blue"}, output="wall"),
        ]

    async def people(world: World, run: eventlog.Run, wait: Waiting) -> None:
        """Edit what is asked first; revoke the approval of what is asked second, once."""
        request = request_of(run, wait.node_id)
        if wait.type != "approval" or request is None:
            await Script()(world, run, wait)
            return
        if wait.node_id == "paint" and not request.superseded:
            await world.runner.edit(run.run_id, args={"colour": "green"}, actor="anna")
            return
        await world.runner.approve(run.run_id, request.proposal_hash or "", actor="bert")
        revoked = [event for event in await world.runner.trace(run.run_id) if event.type == "approval_revoked"]
        if wait.node_id == "paint#2" and not revoked:
            await world.runner.revoke(run.run_id, actor="bert")

    report = await crash_after_every_event(painting, actions=[paint], script=people, pairs=5)
    assert report.effects == 2 * report.histories


async def test_a_plain_workflow_needs_no_scenario_and_no_folder() -> None:
    @eventlog.workflow
    async def short(run: RunContext, text: str) -> int:
        await run.sleep(HOUR_S)
        return await run.step("measure", len, text)

    report = await crash_after_every_event(short, args=["four"])
    assert (report.appends, report.histories, report.crashes) == (7, 15, 14)
    assert (report.calls, report.repeated) == (16, 1)
    assert str(report).startswith("15 histories of 7 appends and more, 14 crashes: 16 calls of steps, 1 of them again")


# ── it can fail: broken workflows, worlds and engines ────────────────────────────────────────────────────────────────


def folder_of_lives(folder: Path) -> int:
    """Return how often this was asked here, over all processes."""
    note(folder / "lives", "another")
    return len(lines(folder / "lives"))


def undecided_in(folder: Path) -> Scenario:
    """A workflow that decides anew in each life, and records it nowhere."""

    @eventlog.workflow
    async def undecided(run: RunContext) -> int:
        side = "left" if folder_of_lives(folder) % 2 else "right"
        await run.step(side, len, side)
        return await run.step("last", len, "last")

    return Scenario(workflow=undecided)


def forgetful_in(folder: Path) -> Scenario:
    """A workflow whose result says how often it was begun."""

    @eventlog.workflow
    async def forgetful(run: RunContext) -> int:
        lives = folder_of_lives(folder)
        await run.step("first", len, "first")
        return lives

    return Scenario(workflow=forgetful)


@pytest.mark.parametrize("in_processes", [False, True])
async def test_control_a_choice_that_is_not_recorded_is_found(tmp_path: Path, in_processes: bool) -> None:
    with pytest.raises(AssertionError, match="its workflow asks for right, where its log holds left") as found:
        await crash_after_every_event(undecided_in, folder=tmp_path, in_processes=in_processes)
    assert "run_claimed" in str(found.value), "the log is shown"


@pytest.mark.parametrize("in_processes", [False, True])
async def test_control_another_result_in_another_life_is_found_and_both_are_shown(
    tmp_path: Path, in_processes: bool
) -> None:
    with pytest.raises(AssertionError, match="did not come to the same") as found:
        await crash_after_every_event(forgetful_in, folder=tmp_path, in_processes=in_processes)
    assert "-run-1: returned 1" in str(found.value)
    assert "+run-1: returned 2" in str(found.value)
    assert list(tmp_path.iterdir()), "what went wrong is left to be looked at"


async def test_what_may_vary_is_named_and_then_does_not_matter(tmp_path: Path) -> None:
    scenario = forgetful_in(tmp_path)
    report = await crash_after_every_event(scenario.workflow, varies=["forgetful"])
    assert report.histories > 5


async def test_control_outputs_that_are_handed_out_before_they_are_durable_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_result = Session.add_result
    late = []

    async def promise_only(self: Session, event: RunEvent) -> int:
        late.append(asyncio.ensure_future(add_result(self, event)))
        return 0

    monkeypatch.setattr(Session, "add_result", promise_only)

    @eventlog.workflow
    async def short(run: RunContext) -> int:
        return await run.step("first", len, "first") + await run.step("second", len, "second")

    with pytest.raises(AssertionError, match="the answer to 'first' of run 'run-1' before it was durable"):
        await crash_after_every_event(short)


async def test_control_an_effect_that_is_repeated_is_found(tmp_path: Path) -> None:
    async def never_knows(_: Call) -> eventlog.Absent:
        return eventlog.Absent()

    @eventlog.action("send", inspect=never_knows)
    async def send(call: Call) -> None:
        await asyncio.sleep(0)

    @eventlog.workflow
    async def sending(run: RunContext) -> None:
        await run.act("send", {}, output="there")

    with pytest.raises(
        AssertionError, match=r"in front of append \d+\.\nin life 2 the effect .* happened for the 2\. ti"
    ):
        await crash_after_every_event(sending, actions=[send])


async def test_control_a_receiver_that_has_seen_an_effect_twice_is_believed() -> None:
    seen: Iterator[int] = itertools.count()

    @eventlog.workflow
    async def short(run: RunContext) -> int:
        return await run.step("first", len, "first")

    with pytest.raises(AssertionError, match="a receiver has seen more than once: 'letter'"):
        await crash_after_every_event(short, receipts=lambda: ["letter"] * (1 + (next(seen) > 0)))


async def test_control_a_world_that_never_answers_is_reported() -> None:
    @eventlog.workflow
    async def waiting(run: RunContext) -> Any:
        return await run.wait_for_signal("go")

    async def silence(world: World, run: eventlog.Run, wait: Any) -> None:
        """Say nothing."""

    with pytest.raises(AssertionError, match="waits for the signal 'go', and the script has none"):
        await crash_after_every_event(waiting)
    with pytest.raises(AssertionError, match="does not go on, and the script does nothing"):
        await crash_after_every_event(waiting, script=silence)


async def test_a_workflow_that_fails_fails_in_the_same_way_each_time() -> None:
    async def hopeless() -> None:
        raise ValueError("never")

    @eventlog.workflow
    async def failing(run: RunContext) -> None:
        await run.step("hopeless", hopeless)

    report = await crash_after_every_event(failing, also_before=False)
    assert report.crashes == report.appends


async def test_a_run_that_failed_and_is_resumed_tries_again_only_what_failed(tmp_path: Path) -> None:
    def cleared_at_the_third(folder: Path) -> str:
        note(folder / "calls", "called")
        if len(lines(folder / "calls")) < 3:
            raise ValueError("not yet")
        return "cleared"

    def failing_in(folder: Path) -> Scenario:
        @eventlog.workflow
        async def failing(run: RunContext) -> list[Any]:
            first = await run.step("first", len, "first")
            both = await run.gather(run.step("sure", len, "ok"), run.step("shaky", cleared_at_the_third, folder))
            return [first, *both]

        return Scenario(workflow=failing, resumes=5, varies=["failing"])

    report = await crash_after_every_event(failing_in, folder=tmp_path, also_before=False, pairs=5)
    assert report.crashes > report.appends > 5


def test_a_killed_life_is_a_process_that_got_sigkill(tmp_path: Path) -> None:
    with Nursery(forgetful_in) as nursery:
        assert nursery.live(Order(str(tmp_path), 1, 2)) == Ending(has_died=True, appends=2)
        assert nursery.live(Order(str(tmp_path), 2)).error is None
        assert nursery.live(Order(str(tmp_path), 3, None)) == Ending(appends=0), (
            "all had ended, so nothing was appended"
        )


def test_what_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(eventlog.InvalidInput, match="at the top of a module"):
        Nursery(lambda folder: forgetful_in(folder))


async def test_a_scenario_brings_its_own_world() -> None:
    with pytest.raises(eventlog.InvalidInput, match="in the scenario"):
        await crash_after_every_event(forgetful_in, args=[1])


def test_control_a_step_that_is_called_again_after_its_output_was_stored_is_named() -> None:
    called = Entry("called", life=1, run="r", key="a")
    stored = Entry("appended", life=1, answered=[("r", "a")])
    given = Entry("delivered", life=2, run="r", key="a")
    again = Entry("called", life=2, run="r", key="a")
    assert violations([called, again, stored, given]) == [], "it was not stored yet, so it had to be called again"
    (found,) = violations([called, stored, given, again])
    assert found == "in life 2 the step 'a' of run 'r' was called again, and its output was in the log"
