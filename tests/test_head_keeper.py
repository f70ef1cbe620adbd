"""Heads are signed in time, and only of what is durable; a log that does not go on from the last one is refused."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import ActionFailed, EventLogError, Expect, LogCorrupt, NewEvent, Promise, StoreUnavailable
from eventlog.audit.heads.key_file import make_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.errors import CODES, InvalidInput, Misuse, OutcomeUnknown, Refused, RunConflict
from eventlog.heads import HeadRequest, SignedHead, StaleHead
from eventlog.log import RunLog
from eventlog.merkle import TreeHead
from eventlog.runtime.effects import Call, Report
from eventlog.stores import signer_calls
from eventlog.stores.sqlite.foreign_write import ConnectionBroken
from eventlog.stores.sqlite.signed_heads import SignedHeads
from eventlog.testing.clock import FakeClock
from eventlog.testing.log_contract import assert_tree
from tests import head_scenarios
from tests.effect_runs import Asked, Looking, Receiver, Sending, approved, runner_of, types_of
from tests.needs import need, need_command
from tests.signers import MemorySigner
from tests.workflow_runs import runner_for
from tools.campaigns.processes import child
from tools.campaigns.processes.waiting import until
from tools.campaigns.storage.libc_faults import build_shim, shim_environment
from tools.campaigns.storage.log_files import open_file

ANY: Final = Expect.any()
NEVER: Final = {"head_every_s": 3600.0, "head_every_events": 1_000_000}
"""No head is signed in the background."""


def notes(count: int) -> list[NewEvent]:
    return [NewEvent("note_taken", {"n": number}) for number in range(count)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A file with a key, and no heads yet."""
    (tmp_path / "keys").mkdir()
    make_key_file(tmp_path / "keys" / "log.key")
    return tmp_path / "keys" / "log.key"


@pytest.fixture(params=["in memory", "with a key"])
def signer(request: pytest.FixtureRequest, key: Path) -> Any:
    """A signer that has signed nothing."""
    return MemorySigner() if request.param == "in memory" else LocalSigner(key)


def signed_size(signer: Any) -> int:
    last = signer.last()
    return 0 if last is None else int(last.head.size)


# ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_log_is_under_a_head_when_it_is_closed(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        assert (await log.health()).signed_size == 0
        head = await log.tree_head()
    last = signer.last()
    assert (last.head, last.log_id) == (head, last.log_id)
    async with open_file(path) as log:
        (kept,) = await log.signed_heads()
        assert kept == last
        assert await log.signed_heads(after=3) == []


async def test_what_was_taken_before_closing_is_under_the_last_head(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log:
        tasks = [asyncio.create_task(log.append("a", notes(1), expect=ANY)) for _ in range(50)]
        await asyncio.sleep(0)
        await log.close()
        await asyncio.gather(*tasks)
    assert signer.sizes[-1] == 50


async def test_empty_log_has_no_head(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, head_every_s=0.01) as log:
        assert await log.sign_head() is None
    assert signer.last() is None


async def test_head_is_signed_after_so_many_events(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, head_every_s=3600, head_every_events=10) as log:
        await log.append("a", notes(9), expect=ANY)
        await asyncio.sleep(0.05)
        assert signer.sizes == []
        await log.append("a", notes(1), expect=ANY)
        await until(lambda: signer.sizes == [10])


async def test_head_is_signed_some_time_after_a_commit_and_not_again(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, head_every_s=0.02) as log:
        await log.append("a", notes(3), expect=ANY)
        await until(lambda: signer.sizes == [3])
        asked = signer.asked
        await asyncio.sleep(0.1)
        assert signer.asked == asked
        assert (await log.health()).signed_size == 3
        await log.append("a", notes(1), expect=ANY)
        await until(lambda: signer.sizes == [3, 4])


async def test_what_was_there_unsigned_is_signed_without_an_append(path: Path) -> None:
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    signer = MemorySigner()
    async with open_file(path, signer=signer, head_every_s=0.02):
        await until(lambda: signer.sizes == [3])


async def test_asking_for_a_head_twice_signs_one(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        first, *others = await asyncio.gather(*(log.sign_head() for _ in range(5)))
        assert first is not None and first.head == await log.tree_head()
        assert others == [first] * 4
        assert (await log.health()).signed_size == 3


async def test_log_that_is_read_only_is_compared_and_never_signed(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    async with open_file(path, signer=signer, is_read_only=True) as log:
        assert await log.sign_head() is None
    assert signed_size(signer) == 3


# ── in front of effects ──────────────────────────────────────────────────────────────────────────────────────────────


class Covered(Asked):
    """An action that notes which positions were under a head when it was called."""

    def __init__(self, receiver: Receiver, log: RunLog, signer: Any) -> None:
        super().__init__(receiver, Promise.CHECKABLE)
        self.log, self.signer = log, signer
        self.found: list[tuple[int, int]] = []

    async def execute(self, call: Call) -> Report:
        self.found.append(((await self.log.head()).position, signed_size(self.signer)))
        return await super().execute(call)


async def test_intent_of_an_effect_is_under_a_head_before_it_happens(path: Path, signer: Any) -> None:
    clock = FakeClock()
    async with open_file(path, signer=signer, clock=clock, **NEVER) as log:
        covered = Covered(Receiver(), log, signer)
        runner = runner_of(log, clock, covered)
        await approved(runner)
        assert (await runner.resume("run-1")).result == "executed"
        (position, signed) = covered.found[0]
        assert signed == position > 2
        assert (await log.read_stream("run:run-1")).events[signed - 1].type == "resume_started"


def _raises_coded() -> None:
    raise StoreUnavailable("signer_unavailable", "the signer is away")


def _raises_anything() -> None:
    raise OSError("no such device")


def _stops_iterating() -> None:
    raise StopIteration


def _times_out() -> None:
    raise TimeoutError


def _hangs() -> None:
    threading.Event().wait(0.5)


ACTIONS: Final[dict[str, Callable[[Receiver], Sending]]] = {
    "opaque": lambda receiver: Sending(receiver, Promise.OPAQUE),
    "keyed": lambda receiver: Sending(receiver, Promise.KEYED, key_lifetime_s=86_400),
    "checkable": lambda receiver: Looking(receiver),
    "asked": lambda receiver: Asked(receiver),
}


@pytest.mark.parametrize("before", [_raises_coded, _raises_anything, _stops_iterating, _times_out, _hangs])
@pytest.mark.parametrize("kind", ACTIONS)
async def test_effect_whose_head_cannot_be_signed_is_performed_once_when_it_can(
    path: Path, kind: str, before: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    signer, clock, receiver = MemorySigner(), FakeClock(), Receiver()
    async with open_file(path, signer=signer, clock=clock, **NEVER) as log:
        runner = runner_of(log, clock, ACTIONS[kind](receiver))
        await approved(runner)
        signer.before = before
        monkeypatch.setattr(signer_calls, "_TIMEOUT_S", 0.1)
        for _ in range(2):
            with pytest.raises(ActionFailed) as refused:
                await runner.resume("run-1")
            assert refused.value.code == "head_not_signed"
        assert receiver.requests == 0
        assert (await types_of(log))[-2:] == ["resume_started", "action_failed"]
        assert "signer" in ((await log.health()).head_error or "")
        monkeypatch.setattr(signer_calls, "_TIMEOUT_S", 15.0)
        signer.before = lambda: None
        assert (await runner.resume("run-1")).result == "executed"
        assert len(receiver.effects) == receiver.requests == 1
        assert (await log.health()).head_error is None


async def test_workflow_whose_head_cannot_be_signed_stops_and_goes_on_when_it_is_resumed(path: Path) -> None:
    told: list[BaseException] = []

    @eventlog.workflow
    async def flow(run: eventlog.RunContext) -> Any:
        try:
            return [await run.act("send", {"n": n}, output="x") for n in range(2)]
        except Exception as error:
            told.append(error)
            raise

    signer, clock, receiver = MemorySigner(), FakeClock(), Receiver()
    async with open_file(path, signer=signer, clock=clock, **NEVER) as log:
        policies = {"send": eventlog.Policy(auto=lambda proposal: True)}
        runner = runner_for(log, clock, flow, actions=[Looking(receiver)], policies=policies)
        signer.before = _raises_anything
        with pytest.raises(ActionFailed) as stopped:
            await runner.start(flow, "run-1")
        assert stopped.value.code == "head_not_signed"
        for _ in range(2):
            with pytest.raises(ActionFailed) as stopped:
                await runner.resume("run-1")
            assert stopped.value.code == "head_not_signed"
        assert (receiver.requests, told) == (0, [])
        assert "action_failed" in await types_of(log)
        signer.before = lambda: None
        outcome = await runner.resume("run-1")
        assert (outcome.status, outcome.value) == ("COMPLETED", [{"number": 1}, {"number": 2}])
        assert (receiver.requests, told) == (2, [])


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        InvalidInput("key_unusable", "the token was pulled out"),
        Misuse("missing_extra", "no library"),
        RunConflict("run-1", "another was first"),
        Refused("approval_rejected", "no"),
        ActionFailed("card_declined", "no", is_final=True),
        OutcomeUnknown("run-1", "nobody knows"),
        Unreadable(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_signer_that_says_what_others_say_has_said_nothing_of_the_effect(path: Path, error: Exception) -> None:
    signer = MemorySigner()
    sent: list[str] = []

    @eventlog.action("send", promise="opaque")
    async def send(call: eventlog.Call) -> str:
        sent.append(call.op_key)
        return "sent"

    def fail() -> None:
        raise error

    async with eventlog.open(path, signer=signer) as log:
        runner = eventlog.Runner(log, actions=[send])
        await approved(runner)
        signer.before = fail
        with pytest.raises(ActionFailed, match=f"it failed: {type(error).__name__}") as failed:
            await runner.resume("run-1")
        assert (failed.value.code, sent) == ("head_not_signed", [])
        signer.before = lambda: None
        assert ((await runner.resume("run-1")).status, len(sent)) == ("COMPLETED", 1)


async def test_effect_in_a_log_whose_tree_is_damaged_is_not_performed(path: Path) -> None:
    signer, clock, receiver = MemorySigner(), FakeClock(), Receiver()
    async with open_file(path, signer=signer, clock=clock, **NEVER) as log:
        runner = runner_of(log, clock, Looking(receiver))
        await approved(runner)
        signer.before = lambda: None
        _edit(path, "UPDATE events SET leaf = zeroblob(32) WHERE position = 1")
        with pytest.raises(EventLogError):
            await runner.resume("run-1")
    assert (receiver.requests, signer.sizes) == (0, [])


# ── only what is durable ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_crash_between_commit_and_head_is_no_reason_to_refuse_the_log(path: Path, key: Path) -> None:
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        await log.append("a", notes(2), expect=ANY)
    done = await asyncio.to_thread(child.run, head_scenarios.is_killed_before_signing, path, key)
    assert done.returncode == -9
    signer = LocalSigner(key)
    assert signed_size(signer) == 2
    async with open_file(path, signer=signer, **NEVER) as log:
        assert (await log.head()).position == 5
        assert await assert_tree(log) == 5
    assert signed_size(signer) == 5


def test_nothing_is_signed_while_nobody_knows_whether_it_is_durable(tmp_path: Path) -> None:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    shim = build_shim(tmp_path, need_command("gcc"))
    environment = shim_environment(shim, tmp_path / "faults")
    seen = child.run(head_scenarios.syncs_fail, tmp_path / "log.db", env=environment).result
    assert seen["told"] == ["commit_outcome_unknown", "store_io_error"]
    assert seen["meanwhile"] == [3]
    assert seen["then"] == 0


async def test_what_another_process_has_committed_is_made_durable_before_it_is_signed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[int] = []
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log, open_file(path) as other:
        assert log._heads is not None
        make_durable = log._heads._source.make_durable

        async def note() -> None:
            flushed.append(len(signer.heads))
            await make_durable()

        monkeypatch.setattr(log._heads._source, "make_durable", note)
        await log.append("a", notes(1), expect=ANY)
        await log.sign_head()
        assert flushed == []
        await other.append("a", notes(1), expect=ANY)
        await log.sign_head()
        assert flushed == [1]
    assert signer.sizes == [1, 2]


# ── a signer that is no help ─────────────────────────────────────────────────────────────────────────────────────────


async def test_signer_that_fails_is_asked_again_however_many_events_come(path: Path) -> None:
    signer = MemorySigner()
    signer.before = _raises_anything
    async with open_file(path, signer=signer, head_every_events=1, head_every_s=0.05) as log:
        for _ in range(60):
            await log.append("a", notes(1), expect=ANY)
        await until(lambda: signer.asked > 1)
        assert signer.asked < 60
        assert "no such device" in ((await log.health()).head_error or "")
        signer.before = lambda: None
        await until(lambda: signed_size(signer) == 60)
        await until(lambda: log._heads is not None and log._heads.last_error is None)


async def test_error_that_nobody_thought_of_ends_no_signing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, head_every_events=1, head_every_s=0.02) as log:
        with monkeypatch.context() as patch:
            patch.setattr(SignedHeads, "keep_head", _cannot_keep)
            await log.append("a", notes(1), expect=ANY)
            await until(lambda: log._heads is not None and log._heads.problem is not None)
            assert (await log.health()).head_error == "ZeroDivisionError: nobody thought of it"
        await log.append("a", notes(1), expect=ANY)
        await until(lambda: log._heads is not None and log._heads.problem is None)
        await until(lambda: signed_size(signer) == 2)
    async with open_file(path) as log:
        assert [kept.head.size for kept in await log.signed_heads()][-1] == 2


async def test_signer_that_always_knows_of_another_head_is_asked_a_few_times_only(path: Path) -> None:
    class Stale(MemorySigner):
        def sign(self, request: HeadRequest) -> SignedHead:
            self.asked += 1
            raise StaleHead(1 + self.asked % 2)

    signer = Stale()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        with pytest.raises(StoreUnavailable, match="faster than it can be asked") as refused:
            await log.sign_head()
        assert (refused.value.code, signer.asked) == ("signer_unavailable", 3)


async def test_head_is_not_kept_while_the_log_waits_to_be_opened_again(path: Path) -> None:
    def breaks(connection: sqlite3.Connection) -> None:
        raise ConnectionBroken("a write could not be ended")

    async with open_file(path, signer=MemorySigner(), **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        await log.sign_head()
        with pytest.raises(StoreUnavailable):
            await log.write_view(breaks)
        assert log._heads is not None
        await log._heads._keep()
        assert ((await log.health()).state, await log.signed_heads()) == ("poisoned", [])
        await log.append("a", notes(3), expect=ANY)
        assert (await log.health()).state == "open"
    async with open_file(path) as log:
        assert [kept.head.size for kept in await log.signed_heads()] == [7]


async def test_signer_that_waits_keeps_nobody_from_appending(path: Path) -> None:
    signer, may_go_on, is_asked = MemorySigner(), threading.Event(), threading.Event()

    def wait() -> None:
        is_asked.set()
        assert may_go_on.wait(30)

    signer.before = wait
    async with open_file(path, signer=signer, head_every_events=1, head_every_s=0.01) as log:
        await log.append("a", notes(1), expect=ANY)
        await until(is_asked.is_set)
        for _ in range(20):
            await log.append("a", notes(1), expect=ANY)
        assert [event.version async for event in log.read("a")] == list(range(1, 22))
        assert signer.sizes == []
        may_go_on.set()
        await until(lambda: signed_size(signer) == 21)


async def test_log_is_closed_though_its_signer_never_answers(path: Path) -> None:
    signer, may_go_on = MemorySigner(), threading.Event()
    async with open_file(path, signer=signer, head_every_s=0.01) as log:
        signer.before = lambda: assert_true(may_go_on.wait(60))
        await log.append("a", notes(3), expect=ANY)
        await until(lambda: signer.asked == 1)
        async with asyncio.timeout(30):
            await log.close()
    assert signer.sizes == []
    may_go_on.set()
    await until(lambda: signer.sizes == [3])
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(1), expect=ANY)
    assert signer.sizes == [3, 4]


def test_program_ends_though_its_signer_never_answers(path: Path) -> None:
    done = child.run(head_scenarios.ends_with_a_signer_that_hangs, path)
    assert (done.returncode, done.result, done.stderr.count("Traceback")) == (0, [], 0)


async def test_two_logs_that_sign_in_turn_sign_one_history(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as one, open_file(path, signer=signer, **NEVER) as other:
        for log in (one, other, one, one, other):
            await log.append("a", notes(2), expect=ANY)
            signed = await log.sign_head()
            assert signed is not None and signed.head == await log.tree_head()
        assert await one.sign_head() == await other.sign_head()
    assert signed_size(signer) == 10


async def test_processes_that_sign_in_turn_sign_one_history(path: Path, key: Path) -> None:
    async with open_file(path, signer=LocalSigner(key), **NEVER) as log:
        await log.append("a", notes(2), expect=ANY)
        await log.sign_head()
        assert (await asyncio.to_thread(child.run, head_scenarios.signs_as_another, path, key)).result == 5
        await log.append("a", notes(2), expect=ANY)
        signed = await log.sign_head()
        assert signed is not None and signed.head.size == 7
    async with open_file(path) as log:
        assert [kept.head.size for kept in await log.signed_heads()] == [5, 7]


async def test_signer_that_refuses_stops_nobody_but_who_asks_for_a_head(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        await log.sign_head()
        signer.heads[0] = with_head(signer.heads[0], TreeHead(3, bytes(32)))
        await log.append("a", notes(3), expect=ANY)
        with pytest.raises(StoreUnavailable) as refused:
            await log.sign_head()
        assert refused.value.code == "head_refused"
        assert "go on" in ((await log.health()).head_error or "")
        await log.append("a", notes(3), expect=ANY)


async def test_head_of_something_else_is_not_taken_for_signed(path: Path) -> None:
    class Confused(MemorySigner):
        def sign(self, request: HeadRequest) -> SignedHead:
            return with_head(super().sign(request), TreeHead(request.head.size, bytes(32)))

    async with open_file(path, signer=Confused(), **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        with pytest.raises(StoreUnavailable) as refused:
            await log.sign_head()
        assert refused.value.code == "signer_unavailable"
        assert (await log.health()).signed_size == 0


async def test_log_that_is_shorter_than_what_was_signed_meanwhile_is_rolled_back(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(6), expect=ANY)
        await log.sign_head()
        root = (await log.tree_head(4)).root.hex()  # of a size with one bit: the frontier is the root
        _edit(path, "DELETE FROM events WHERE position > 4", f"UPDATE tree SET size = 4, frontier = x'{root}'")
        with pytest.raises(StoreUnavailable) as refused:
            await log.sign_head()
        assert refused.value.code == "store_rolled_back"


# ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_log_with_a_signer_may_be_closed_twice_and_at_once(path: Path) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, head_every_s=0.01) as log:
        await log.append("a", notes(3), expect=ANY)
        await asyncio.gather(log.close(), log.close())
        await log.close()
    assert signer.sizes == [3]


async def test_closing_that_is_cancelled_gives_everything_back_all_the_same(path: Path) -> None:
    signer, may_go_on = MemorySigner(), threading.Event()
    before = asyncio.all_tasks()
    log = open_file(path, signer=signer, head_every_s=0.01)
    await log.__aenter__()
    signer.before = lambda: assert_true(may_go_on.wait(60))
    await log.append("a", notes(3), expect=ANY)
    closing = asyncio.create_task(log.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert asyncio.all_tasks() == before
    assert not path.with_name("log.db-wal").exists(), "the files were closed"


async def test_opening_that_fails_leaves_no_task_behind(path: Path) -> None:
    before = asyncio.all_tasks()
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    signer = MemorySigner()
    log = open_file(path, signer=signer)

    async def fail(_: object) -> None:
        raise LogCorrupt("view_damaged", "no")

    log._prepare_all_views = fail  # type: ignore[method-assign,assignment]
    log._views = True  # type: ignore[assignment,misc]
    with pytest.raises(LogCorrupt):
        await log.__aenter__()
    assert asyncio.all_tasks() == before


# ── a log that does not go on ────────────────────────────────────────────────────────────────────────────────────────


def _older_copy(path: Path, copies: dict[str, Path]) -> str:
    shutil.copy(copies["older"], path)
    return "store_rolled_back"


def _empty_copy(path: Path, copies: dict[str, Path]) -> str:
    shutil.copy(copies["empty"], path)
    return "store_rolled_back"


def _other_history(path: Path, copies: dict[str, Path]) -> str:
    shutil.copy(copies["forked"], path)
    return "store_forked"


def _other_log(path: Path, copies: dict[str, Path]) -> str:
    shutil.copy(copies["other"], path)
    return "store_forked"


def _lost_wal(path: Path, copies: dict[str, Path]) -> str:
    shutil.copy(copies["without wal"], path)
    return "store_rolled_back"


def _lost_all(path: Path, copies: dict[str, Path]) -> str:
    path.unlink()
    return "store_rolled_back"


def _emptied_file(path: Path, copies: dict[str, Path]) -> str:
    path.write_bytes(b"")
    return "store_rolled_back"


@pytest.fixture
async def copies(path: Path, tmp_path: Path) -> dict[str, Path]:
    """The log with 3 events, as copies of it that are used later; none is open."""
    copies = {name: tmp_path / name for name in ("empty", "older", "forked", "other", "without wal")}
    async with open_file(path):
        pass
    shutil.copy(path, copies["empty"])
    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    shutil.copy(path, copies["older"])
    shutil.copy(path, copies["forked"])
    async with open_file(copies["forked"]) as log:
        await log.append("a", notes(9), expect=ANY)
    async with open_file(copies["other"]) as log:
        await log.append("a", notes(9), expect=ANY)
    return copies


@pytest.mark.parametrize("is_read_only", [False, True])
@pytest.mark.parametrize(
    "change", [_older_copy, _empty_copy, _other_history, _other_log, _lost_wal, _lost_all, _emptied_file]
)
async def test_log_that_does_not_go_on_from_the_last_head_is_refused_untouched(
    path: Path,
    signer: Any,
    copies: dict[str, Path],
    change: Callable[[Path, dict[str, Path]], str],
    is_read_only: bool,
) -> None:
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        shutil.copy(path, copies["without wal"])
    code = change(path, copies)
    before = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(StoreUnavailable) as refused:
            async with open_file(path, signer=signer, is_read_only=is_read_only, **NEVER):
                pass
        if is_read_only and not before:
            assert refused.value.code in ("store_not_found", "store_not_eventlog")
        else:
            assert refused.value.code == code
            assert refused.value.hint == CODES[code].hint
        assert (path.read_bytes() if path.exists() else None) == before
        assert not path.with_name("log.db-wal").exists() or not path.with_name("log.db-wal").stat().st_size
    assert signed_size(signer) == 6


@pytest.mark.parametrize("change", [_older_copy, _other_history, _other_log, _lost_wal])
async def test_nobody_else_notices_that_a_log_does_not_go_on(
    path: Path, copies: dict[str, Path], change: Callable[[Path, dict[str, Path]], str]
) -> None:
    signer = MemorySigner()
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
        shutil.copy(path, copies["without wal"])
    change(path, copies)
    for other in (None, MemorySigner()):
        async with open_file(path, signer=other) as log:
            assert await assert_tree(log) == (await log.head()).position


async def test_newer_events_than_the_last_head_are_in_order(path: Path, signer: Any) -> None:
    async with open_file(path, signer=signer, **NEVER) as log:
        await log.append("a", notes(3), expect=ANY)
    async with open_file(path) as log:
        await log.append("a", notes(300), expect=ANY)
    async with open_file(path, signer=signer, **NEVER):
        pass
    assert signed_size(signer) == 303


async def test_signer_that_cannot_be_asked_keeps_the_log_from_being_opened(path: Path) -> None:
    class Away(MemorySigner):
        def last(self) -> SignedHead | None:
            raise ConnectionRefusedError("nobody listens")

    async with open_file(path) as log:
        await log.append("a", notes(3), expect=ANY)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as refused:
        async with open_file(path, signer=Away()):
            pass
    assert (refused.value.code, path.read_bytes()) == ("signer_unavailable", before)
    async with open_file(path) as log:
        assert (await log.health()).signed_size is None


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "normal"},
        {"head_every_events": 0},
        {"head_every_s": 0},
        {"head_every_s": float("nan")},
        {"restored": " "},
        {"restored": "x", "is_read_only": True},
    ],
    ids=str,
)
def test_options_that_would_sign_what_is_not_durable_or_never_are_refused(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(EventLogError) as refused:
        eventlog.open(path, signer=MemorySigner(), **options)
    assert refused.value.code == "invalid_argument"
    assert not path.exists()


# ── what the tests do themselves ─────────────────────────────────────────────────────────────────────────────────────


def assert_true(value: bool) -> None:
    assert value


async def _cannot_keep(_: SignedHeads, signed: SignedHead) -> None:
    raise ZeroDivisionError("nobody thought of it")


def with_head(signed: SignedHead, head: TreeHead) -> SignedHead:
    return SignedHead(log_id=signed.log_id, head=head, note=signed.note, signed_at_us=signed.signed_at_us)


def _edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
