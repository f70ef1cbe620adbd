"""The scenarios: which program runs, what is done to it meanwhile, and how it has to end."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from eventlog import Expect
from tools.campaigns.lifecycle import closes, endings, forks, identity, services
from tools.campaigns.lifecycle.keeping import event
from tools.campaigns.processes.warm import Started
from tools.campaigns.storage.log_files import is_lock_free, open_file

__all__ = ["MODULES", "SCENARIOS", "Scenario", "Scene"]

MODULES: Final = (*(module.__name__ for module in (closes, endings, forks, identity, services)), "eventlog.cli.app")
"""What a child finds imported."""

BEGIN_S: Final = 30.0
"""How long a program may take until it is ready: far beyond what it needs, on a busy machine too."""


@dataclass(frozen=True)
class Scene:
    """A scenario at work."""

    child: Started
    path: Path
    chance: random.Random

    def until_ready(self, line: str = "READY") -> None:
        """Wait until the program says that it is under way; what follows shows it if it never does."""
        self.child.has_said(line, timeout_s=BEGIN_S)

    def wait_a_moment(self) -> None:
        """Let it get to any point of what it does."""
        time.sleep(self.chance.random() * 0.03)


@dataclass(frozen=True)
class Scenario:
    """One way to end. `returns` is what the program returns, None if it does not come to that, ... if that is open."""

    name: str
    program: Callable[..., Any]
    args: tuple[object, ...] = ()
    returns: Any = None
    returncodes: tuple[int, ...] = (0,)
    drive: Callable[[Scene], None] = lambda scene: None
    before: Callable[[str], Any] | None = None
    """Makes the log first, if there has to be one."""
    after: Callable[[str], Any] | None = None
    """Looks at the log afterwards, and returns what is in `leaves`."""
    leaves: Any = None
    says: str = ""
    """A regular expression that the whole error output has to match."""
    keeps_the_log: bool = True
    """Whether the log is at its path afterwards, with all that was acknowledged."""
    faults: tuple[str, ...] = field(default=("F46",))


def _signalled(*numbers: signal.Signals, ready: str = "READY", pause_s: float = 0.0) -> Callable[[Scene], None]:
    def drive(scene: Scene) -> None:
        scene.until_ready(ready)
        scene.wait_a_moment()
        for number in numbers:
            scene.child.send(number)
            time.sleep(pause_s)

    return drive


def _signalled_until_it_ends(*numbers: signal.Signals) -> Callable[[Scene], None]:
    """Signal as `_signalled`, and once more whenever nothing has come of it for a while, as people do.

    Where a handler raises, asyncio may have taken a callback and not have run it yet. That is lost then, and who waits
    for it waits for ever, without any log. So one more signal may be needed; with it even such a program has to end.
    """

    def drive(scene: Scene) -> None:
        _signalled(*numbers)(scene)
        for _ in range(5):
            if scene.child.has_ended(1.0):
                return
            scene.child.send(numbers[0])

    return drive


def _worker_signalled(*numbers: signal.Signals) -> Callable[[Scene], None]:
    """Signal the command `worker` once it has picked up a run, and each time some of the time that a step takes on."""

    def drive(scene: Scene) -> None:
        give_up_s = time.monotonic() + BEGIN_S
        while "run_picked_up" not in scene.child.stderr and time.monotonic() < give_up_s:
            if scene.child.has_ended(0.01):
                return
        for number in numbers:
            scene.wait_a_moment()
            scene.child.send(number)

    return drive


@contextmanager
def _stopped_lock_holder(path: Path) -> Iterator[None]:
    """Let a process take the file lock, and stop it, so that it never gives the lock back by itself."""
    program = (
        "import fcntl, os, sys; d = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600);"
        "fcntl.flock(d, fcntl.LOCK_EX); sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-S", "-c", program, f"{path}.lock"], stdin=subprocess.PIPE)
    try:
        give_up_s = time.monotonic() + BEGIN_S
        while is_lock_free(path) and time.monotonic() < give_up_s:
            time.sleep(0.005)
        holder.send_signal(signal.SIGSTOP)
        yield
    finally:
        holder.kill()
        holder.communicate()


def _meets_a_held_lock(scene: Scene) -> None:
    scene.until_ready()
    with _stopped_lock_holder(scene.path):
        scene.child.tell("go on\n")
        scene.child.waits_to_end(limit_s=10, idle_limit_s=2, before_s=BEGIN_S)


def _is_killed_while_its_child_lives(scene: Scene) -> None:
    """Kill the parent in its transaction: the lock is free, though the forked child lives on for a while."""
    scene.until_ready()
    scene.child.send(signal.SIGKILL)
    scene.child.has_ended(BEGIN_S)
    give_up_s = time.monotonic() + 5
    while not is_lock_free(scene.path) and time.monotonic() < give_up_s:
        time.sleep(0.005)
    assert is_lock_free(scene.path), "the forked child keeps the lock of a parent that was killed"
    scene.child.close_input()


def _is_killed_in_an_effect(scene: Scene) -> None:
    """Kill the parent in its effect: it is known at once to be dead, though the forked child lives on for a while."""
    scene.until_ready()
    scene.child.send(signal.SIGKILL)
    scene.child.has_ended(BEGIN_S)
    told = asyncio.run(forks.resumes(str(scene.path)))
    assert told == "outcome_unknown", f"the forked child keeps the claim of a parent that was killed: told {told}"
    scene.child.close_input()


def _one_more_event(scene: Scene) -> None:
    """Append behind the end of the pipe, so that the program meets it."""
    scene.until_ready()
    asyncio.run(_append(str(scene.path)))
    scene.child.leave()


async def _append(path: str) -> None:
    async with open_file(path) as log:
        await log.append("s", [event() for _ in range(5)], expect=Expect.any())


def _signals(name: str, program: Callable[..., Any], *numbers: signal.Signals, **more: Any) -> Scenario:
    return Scenario(name, program, drive=_signalled(*numbers), faults=("F11", "F45"), **more)


def _raises(name: str, program: Callable[..., Any], *numbers: signal.Signals, **more: Any) -> Scenario:
    """As `_signals`, where a handler raises wherever the program just is."""
    return Scenario(name, program, drive=_signalled_until_it_ends(*numbers), faults=("F11",), says=r"(?s).*", **more)


def _worker(name: str, *numbers: signal.Signals, returncodes: tuple[int, ...]) -> Scenario:
    return Scenario(
        name,
        services.runs_a_command,
        ("worker", "--app", f"{services.__name__}:make_runner"),
        drive=_worker_signalled(*numbers),
        returncodes=returncodes,
        before=services.submit_runs,
        after=services.finish_runs,
        leaves=["COMPLETED"],
        says=r"(run_(picked_up|left)[^\n]*\n|[^\n]*interrupted[^\n]*\n)*",
        faults=("F11",),
    )


def _tail(name: str, drive: Callable[[Scene], None], *, returncode: int, says: str = "") -> Scenario:
    return Scenario(
        name,
        services.runs_a_command,
        ("tail", "-f", "--format", "plain"),
        drive=drive,
        returncodes=(returncode,),
        before=_append,
        says=says,
        faults=("F11", "F53"),
    )


_INT, _TERM = signal.SIGINT, signal.SIGTERM
_BY_INTERRUPT: Final = (-_INT, 130, 1)
_INTERRUPTED: Final = r"(?s)(Traceback.*)?KeyboardInterrupt\s*"
_EXITED: Final = r"(?s)(.*SystemExit: \d\s*)?"
_DESTROYED: Final = r"(Task was destroyed[^\n]*\n|task: <Task pending[^\n]*\n)*"

SCENARIOS: Final = (
    Scenario("never closed", endings.never_closes),
    Scenario("never closed, forgotten", endings.never_closes_and_forgets),
    Scenario("never closed, on uvloop", closes.lives_on_uvloop, ("never_closes",)),
    Scenario("sys.exit in the block", endings.exits_inside, returncodes=(3,)),
    Scenario("an error that nobody catches", endings.raises_inside, returncodes=(1,)),
    Scenario("sys.exit in a task", closes.exits_in_a_task, returncodes=(6,), says=_EXITED),
    Scenario(
        "KeyboardInterrupt in a task", closes.is_interrupted_in_a_task, returncodes=_BY_INTERRUPT, says=_INTERRUPTED
    ),
    Scenario("asyncio.run ends under appends", endings.returns_with_appends_in_flight, faults=("F45",)),
    Scenario(
        "asyncio.run ends under appends, on uvloop",
        closes.lives_on_uvloop,
        ("returns_with_appends_in_flight",),
        faults=("F45",),
    ),
    Scenario("the loop is closed under an append", endings.closes_the_loop_under_an_append, says=_DESTROYED),
    Scenario("daemon threads append", closes.works_in_daemon_threads),
    Scenario("subscriptions are open", closes.ends_with_subscriptions, faults=("F46", "F53")),
    _signals("SIGINT", endings.appends_until_interrupted, _INT, returncodes=_BY_INTERRUPT, says=_INTERRUPTED),
    _signals(
        "SIGINT, never closed",
        endings.appends_until_interrupted_and_never_closes,
        _INT,
        returncodes=_BY_INTERRUPT,
        says=_INTERRUPTED,
    ),
    _raises("SIGINT twice", endings.appends_until_interrupted, _INT, _INT, returncodes=_BY_INTERRUPT),
    _signals("SIGTERM, not handled", endings.appends_until_interrupted, _TERM, returncodes=(-_TERM,)),
    _signals("SIGTERM cancels", endings.cancelled_by_sigterm, _TERM, returns="ended in order"),
    _signals(
        "SIGTERM cancels, twice",
        endings.cancelled_by_sigterm,
        _TERM,
        _TERM,
        returns=...,
        returncodes=(0, 1, -_TERM),
        says=r"(?s)(Traceback.*CancelledError\s*)?",
    ),
    _raises("SIGTERM exits", endings.exits_in_a_sigterm_handler, _TERM, returncodes=(4, 1, 120, -_TERM)),
    _raises("SIGTERM exits, twice", endings.exits_in_a_sigterm_handler, _TERM, _TERM, returncodes=(4, 1, 120, -_TERM)),
    *(
        Scenario(
            f"a stopped process holds the lock: {ending}",
            endings.cannot_get_the_lock,
            (ending,),
            returns=[] if ending == "in the middle" else ["store_busy", "store_busy"],
            drive=_meets_a_held_lock,
            faults=("F22",),
        )
        for ending in ("closed", "not closed", "in the middle")
    ),
    Scenario(
        "the file is locked for too long",
        identity.is_locked_out,
        ("file",),
        returns=["store_busy", "ok", "2 events"],
        faults=("F22",),
    ),
    Scenario(
        "the database is locked for too long",
        identity.is_locked_out,
        ("database",),
        returns=["store_busy", "ok", "2 events"],
        faults=("F22",),
    ),
    Scenario(
        "a decision meets a lock",
        identity.is_locked_out_of_a_decision,
        returns=["store_busy", "store_busy", "store_busy", "WAITING_FOR_USER", "APPROVED", "COMPLETED"],
        faults=("F23",),
    ),
    *(
        Scenario(
            f"fork: the child tries everything, {ending}",
            forks.forks,
            (ending,),
            returns={
                "child": ["fork_detected"] * 14,
                "status": 0,
                "is_lock_held": ending == "_exit in a transaction",
                "state": "open",
                "head": 21,
            },
            faults=("F48",),
        )
        for ending in ("_exit", "_exit in a transaction")
    ),
    Scenario(
        "fork: the child ends as a program does",
        forks.forks_between_two_runs_of_the_loop,
        returns={"status": 5, "state": "open", "head": 21},
        faults=("F48",),
    ),
    Scenario(
        "fork: the child execs",
        forks.forks_and_execs,
        returns={"status": 0, "theirs": 1, "state": "open", "head": 22},
        faults=("F48",),
    ),
    Scenario(
        "fork: the parent is killed in a transaction",
        forks.forks_and_waits_in_a_transaction,
        returncodes=(-signal.SIGKILL,),
        drive=_is_killed_while_its_child_lives,
        faults=("F48",),
    ),
    Scenario(
        "fork: the parent is killed in an effect",
        forks.forks_in_an_effect,
        returncodes=(-signal.SIGKILL,),
        drive=_is_killed_in_an_effect,
        faults=("F48",),
    ),
    Scenario("another thread", closes.is_used_from_elsewhere, returns=["wrong_loop"], faults=("F47",)),
    Scenario("two loops", closes.lives_in_two_loops, returns=["ok", "wrong_loop"], faults=("F47",)),
    Scenario("closed twice", closes.closes_twice, returns=["engine_closed", "engine_closed"]),
    Scenario("closed under appends", closes.closes_under_appends, returns=["engine_closed"]),
    Scenario(
        "closed under subscriptions",
        closes.closes_under_subscriptions,
        returns=["engine_closed"] * 3,
        faults=("F46", "F53"),
    ),
    Scenario("closed under a rebuild", closes.closes_under_a_rebuild, returns=["5000"]),
    Scenario("close is cancelled", closes.cancels_close, returns=[]),
    Scenario("an error leaves the block", closes.raises_in_the_block, returns=["raised", "engine_closed"]),
    Scenario("wait_for ends every call", closes.times_out_everywhere, returns=[], faults=("F43", "F44")),
    Scenario("one bad append in a batch", closes.appends_a_mixed_batch, returns=..., faults=("F54",)),
    Scenario("300 openings", closes.opens_and_closes, (300,), returns=[], faults=("F55",)),
    Scenario("a signer hangs", services.ends_with_a_signer_that_hangs, ("closed",), returns=["ok"]),
    Scenario("a signer hangs, never closed", services.ends_with_a_signer_that_hangs, ("not closed",), returns=["ok"]),
    Scenario("a signer hangs at open", services.opens_with_a_signer_that_hangs, returns=["gave up"]),
    Scenario("a signer dies", services.ends_with_a_signer_that_dies, returns=["ok", "signer_unavailable", "said"]),
    Scenario(
        "a worker is stopped twice",
        services.works_and_is_stopped_twice,
        returns=["3"],
        before=services.submit_runs,
        after=services.finish_runs,
        leaves=["COMPLETED"],
    ),
    Scenario(
        "a worker is cancelled twice",
        services.works_and_is_cancelled,
        returns=["cancelled"],
        before=services.submit_runs,
        after=services.finish_runs,
        leaves=["COMPLETED"],
    ),
    Scenario(
        "a worker at work, never closed",
        services.works_and_never_closes,
        before=services.submit_runs,
        after=services.finish_runs,
        leaves=["COMPLETED"],
    ),
    _worker("eventlog worker, SIGINT", _INT, returncodes=(0,)),
    _worker("eventlog worker, SIGTERM", _TERM, returncodes=(0,)),
    _worker("eventlog worker, SIGTERM twice", _TERM, _TERM, returncodes=(0, -_TERM)),
    _tail("eventlog tail -f, SIGINT", _signalled(_INT, ready="5\t"), returncode=130, says=r"[^\n]*\n?"),
    _tail("eventlog tail -f, SIGTERM", _signalled(_TERM, ready="5\t"), returncode=-_TERM),
    Scenario(
        "eventlog tail -f, closed pipe",
        services.tails_into_a_closed_pipe,
        drive=_one_more_event,
        returncodes=(141,),
        before=_append,
        faults=("F11", "F53"),
    ),
    Scenario(
        "iterators are left in the middle", identity.leaves_iterators, returns=["busy 0", "2000 more"], faults=("F53",)
    ),
    Scenario(
        "the write-ahead log is deleted",
        identity.loses_its_wal,
        keeps_the_log=False,
        returns=["commit_outcome_unknown", "store_identity_changed"],
        faults=("F27",),
    ),
    Scenario(
        "the database is moved away",
        identity.is_renamed,
        ("moved",),
        keeps_the_log=False,
        returns=["commit_outcome_unknown", "store_identity_changed", "store_identity_changed"],
        faults=("F35",),
    ),
    Scenario(
        "the database is replaced",
        identity.is_renamed,
        ("replaced",),
        returns=["commit_outcome_unknown", "store_identity_changed", "store_identity_changed", "theirs"],
        faults=("F35",),
    ),
    Scenario(
        "the database is read as a file",
        identity.is_opened_by_its_own_process,
        keeps_the_log=False,
        returns=["commit_outcome_unknown", "store_identity_changed"],
        faults=("F27", "F38"),
    ),
)
