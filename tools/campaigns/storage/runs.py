"""One run of a storage scenario: a copy of its folder, a child that works there, another process that audits.

Whoever asks for a run has neither a thread nor a loop nor a log open, for both processes are forked. What the first
does under a fault is told through a pipe; `begin` makes the fault in it, and `heal` ends it before the work is done
again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog  # noqa: F401 - the engine imports it for its first line, which would be once in each child

from tools.campaigns.processes.forked import in_child
from tools.campaigns.processes.told import Call, Said, StoppedEarly, calls_in
from tools.campaigns.storage.auditor import Auditor
from tools.campaigns.storage.scenarios import FOR_SMALL_DISKS, Scenario, Wrong

__all__ = ["Ran", "Runs"]

_ALL: Final = FOR_SMALL_DISKS
_PATIENCE_S: Final = 60.0
"""What ends takes a fraction of a second here, or a few where everything has to time out."""
_AFTER_A_FAULT: Final = frozenset({"run_conflict"})
"""What may be told once a fault is over: somebody who began has not been seen to end."""


class Ran(msgspec.Struct):
    """What a run has shown."""

    status: int
    """The exit status of the child that worked, negative if it was ended by a signal."""
    calls: list[Call]
    wrong: list[Wrong]
    seconds: float


def _nothing() -> None: ...


class Runs:
    """Runs of scenarios in copies of their folders, below `place`. A context manager."""

    def __init__(self, place: Path) -> None:
        self.place: Final = place
        self._prepared: Final[dict[str, Path]] = {}
        self._auditor: Final = Auditor(_PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._auditor.end()

    def folder(self, scenario: str) -> Path:
        """Return the folder of a scenario as it is before anything was done in it."""
        if scenario not in self._prepared:
            folder = self.place / f"{scenario}.prepared"
            folder.mkdir()
            ended = in_child(lambda _: _run(_ALL[scenario].prepare(folder)), _PATIENCE_S)
            assert ended.status == 0, f"the scenario {scenario} cannot be prepared: {ended.said.decode()}"
            self._prepared[scenario] = folder
            self._warm_up(scenario)
        return self._prepared[scenario]

    def _warm_up(self, scenario: str) -> None:
        """Do the work without a fault, in a child, which is bounded, and here: so that no later child is the first.

        What is imported and compiled for it, and what is kept of that, is there for all that are forked from now on.
        """
        ended = in_child(lambda _: self._try_out(scenario, "tried"), _PATIENCE_S)
        assert ended.status == 0, f"the scenario {scenario} does not work without a fault: {ended.said.decode()}"
        self._try_out(scenario, "loaded")
        assert threading.active_count() == 1, f"threads are left: {threading.enumerate()}"

    def _try_out(self, scenario: str, name: str) -> None:
        folder = self.place / f"{scenario}.{name}"
        shutil.copytree(self._prepared[scenario], folder)
        with open(os.devnull, "wb") as ignored:
            _run(_work_twice(_ALL[scenario], folder, Said(ignored.fileno()), _nothing))
        _run(_ALL[scenario].audit(folder, []))
        shutil.rmtree(folder)

    def run(
        self,
        scenario: str,
        begin: Callable[[Path], None] = lambda _: None,
        heal: Callable[[], None] = _nothing,
        *,
        may_die_by: Collection[signal.Signals] = (),
        place: Path | None = None,
    ) -> Ran:
        """Do the work of a scenario in a new copy of its folder, in `place` if given, and audit what has become of it.

        That the working child is ended by one of the signals in `may_die_by` is in order.
        """
        prepared = self.folder(scenario)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=place or self.place))
        try:
            shutil.copytree(prepared, folder, dirs_exist_ok=True)
            return self._run_in(folder, scenario, begin, heal, may_die_by)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _run_in(
        self,
        folder: Path,
        scenario: str,
        begin: Callable[[Path], None],
        heal: Callable[[], None],
        may_die_by: Collection[signal.Signals],
    ) -> Ran:
        began_s = time.monotonic()

        def work(descriptor: int) -> None:
            said = Said(descriptor)
            begin(folder)
            _run(_work_twice(_ALL[scenario], folder, said, heal))

        ended = in_child(work, _PATIENCE_S)
        calls = calls_in(ended.said)
        wrong = _wrong_with_end(ended.status, calls, ended.has_hung, may_die_by)
        heal()
        wrong += self._auditor.ask(scenario, folder, calls)
        return Ran(ended.status, calls, wrong, time.monotonic() - began_s)


async def _work_twice(scenario: Scenario, folder: Path, said: Said, heal: Callable[[], None]) -> None:
    """Do the work, and where something has failed, do it again without the fault: then everything has to work."""
    for said.is_second in (False, True):
        try:
            await scenario.work(folder, said)
        except StoppedEarly:
            pass
        except Exception as error:
            said.broke(error)
        if not said.has_failed:
            return
        heal()


def _wrong_with_end(status: int, calls: Sequence[Call], has_hung: bool, may_die_by: Collection[int]) -> list[Wrong]:
    if has_hung:
        last = str(calls[-1]) if calls else "nothing was begun"
        return [Wrong("I9", f"the program did not end in {_PATIENCE_S:.0f} s; the last call: {last}")]
    wrong = [Wrong("I8", f"an error without a code: {call}") for call in calls if call.told == "raw"]
    if status != 0 and -status not in may_die_by:
        wrong.append(Wrong("I8", f"the program ended with {status}"))
    late = [call for call in calls if call.is_second and call.told in ("failed", "unknown")]
    return wrong + [
        Wrong("I8", f"refused though the fault was over: {call}") for call in late if call.code not in _AFTER_A_FAULT
    ]


def _run(work: object) -> object:
    return asyncio.run(work)  # type: ignore[arg-type]
