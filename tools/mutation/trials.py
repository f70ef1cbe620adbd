"""Trials of mutants: the tests that belong to a module, run with one small mistake in it, in a process of their own.

There are two kinds of process in which a mutant may be tried. A *warm* one has collected the tests already, so that a
fork of it only has to put the changed code in the place of the right one, and to run the tests that ever call the
function; this takes a fraction of a second. It serves for what stands in the body of a function. A *fresh* one has
pytest loaded and nothing of the engine, and imports everything with the changed text: for what is read at import, and
for functions that no test calls.

In both, Hypothesis draws few examples, from the same seed each time, and does not shrink; tests that need an event loop
are left out, with all that opens a log, for what is measured is pure and has to be held by tests that are. A trial has
ended when a test fails, or when it has used twice the processor time that all the tests need without a mutant.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from tools.mutation.mutants import Mutant
from tools.mutation.mutated_code import ROOT, MutantFinder, function_of, functions_of, mark, swap
from tools.mutation.trial_processes import BROKEN, Trial, side_by_side

__all__ = ["Outcome", "run_mutants"]

_LOADED_ONCE: Final = (
    "pytest",
    "hypothesis",
    "hypothesis.strategies",
    "hypothesis.stateful",
    "aiosqlite",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "httpx",
    "msgspec",
    "rfc8785",
    "structlog",
)
"""All that is slow to load and not the engine."""

_OPTIONS: Final = (
    *("-q", "-x", "-s", "--no-header", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=0"),
    "--assert=plain",
)
"""Asserts are left as they are: to rewrite those of its plugin, pytest would find the engine before the mutant is."""
_EXAMPLES: Final = 30
_TIMES_AS_LONG: Final = 2
_LEAST_S: Final = 5
_PASSED, _FAILED, _NOT_HERE = 0, 1, 70


@dataclass(frozen=True)
class Outcome:
    """What became of one mutant, and the end of what pytest said of it."""

    mutant: Mutant
    is_killed: bool
    said: str = ""


def run_mutants(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int) -> Iterator[Outcome]:
    """Give what becomes of mutants whose tests are in these files. Raises SystemExit if the tests fail without any."""
    for name in _LOADED_ONCE:
        importlib.import_module(name)
    sys.dont_write_bytecode = False  # all trials share what is compiled of the engine and of the tests
    read_end, write_end = os.pipe()
    warm = Trial(lambda folder: _be_warm(mutants, tests, jobs, folder, write_end), None)
    os.close(write_end)
    fresh, limit_s = [], 0
    try:
        with open(read_end, encoding="utf-8") as told:
            for index, status, facts in map(json.loads, told):
                if index is None:
                    limit_s = status
                    print(f"mutation: {facts}", flush=True)
                elif status == _NOT_HERE:
                    fresh.append(mutants[index])
                elif status == BROKEN:
                    raise SystemExit(f"mutation: no tests could be run\n{facts}")
                else:
                    yield Outcome(mutants[index], status != _PASSED, facts)
        warm.wait()
        if warm.status != 0:
            raise SystemExit(f"mutation: without a mutant, these tests should pass: {', '.join(tests)}\n{warm.said()}")
    finally:
        warm.stop()
        warm.clear()
    yield from _run_fresh(fresh, tests, jobs, limit_s)


def _run_fresh(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int, limit_s: int) -> Iterator[Outcome]:
    for mutant, trial in side_by_side(mutants, lambda mutant: Trial(_fresh_trial(mutant, tests), limit_s), jobs):
        said = trial.said()
        if trial.status == BROKEN << 8:
            raise SystemExit(f"mutation: no tests could be run\n{said}")
        yield Outcome(mutant, trial.status != 0, said)


# ── fresh ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _fresh_trial(mutant: Mutant, tests: Sequence[str]) -> Callable[[Path], int]:
    def work(folder: Path) -> int:
        import pytest

        os.chdir(ROOT)
        sys.meta_path.insert(0, MutantFinder(mutant))
        return int(pytest.main([*_OPTIONS, *tests], plugins=[_Settings()]))

    return work


class _Settings:
    """The plugin that has Hypothesis try few examples, and be done with the first that fails."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Leave out what needs an event loop."""
        items[:] = [item for item in items if not iscoroutinefunction(item.obj)]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Say at once what has failed: a session that ends by `os._exit` has no summary."""
        if report.failed:
            print(f"\n{report.nodeid}\n{report.longreprtext}")

    def pytest_collection_finish(self) -> None:
        """Change the settings that the tests fall back on."""
        from hypothesis import Phase, settings

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", settings(), max_examples=_EXAMPLES, database=None, phases=phases)
        settings.load_profile("mutants")


# ── warm ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _be_warm(mutants: Sequence[Mutant], tests: Sequence[str], jobs: int, folder: Path, told: int) -> int:
    import pytest

    os.chdir(ROOT)
    with open(told, "w", encoding="utf-8") as report:
        trials = _Warm(mutants, jobs, report)
        status = int(pytest.main([*_OPTIONS, *tests], plugins=[trials, _Settings()]))
    return _PASSED if trials.has_passed else status or _FAILED


class _Warm:
    """The plugin that, in place of running what is collected, runs it in forks: once as it is, then for each mutant.

    The test that killed a mutant comes first in the next trial, because neighbours are often killed by the same.
    """

    def __init__(self, mutants: Sequence[Mutant], jobs: int, report: Any) -> None:
        self.has_passed = False
        self._mutants, self._jobs, self._report = mutants, jobs, report
        self._items: list[Any] = []
        self._calls: list[set[str]] = []
        self._first: list[int] = []
        self._functions: dict[str, list[FunctionType]] = {}

    def pytest_runtestloop(self, session: Any) -> bool:
        """Do it, and say that nothing else is to be run."""
        self._items = session.items
        self._functions = functions_of({mutant.module for mutant in self._mutants})
        if limit_s := self._run_as_it_is(session):
            self.has_passed = True
            gc.freeze()  # so that a fork shares the memory
            here = [mutant for mutant in self._mutants if self._order(mutant)]
            for mutant in self._mutants:
                if mutant not in here:
                    self._tell(self._mutants.index(mutant), _NOT_HERE, "")
            for mutant, trial in side_by_side(here, lambda mutant: self._begin(session, mutant, limit_s), self._jobs):
                self._end(mutant, trial)
        return True

    def _run_as_it_is(self, session: Any) -> int:
        """Run all tests and learn what each calls. Return how many seconds a trial may use; 0 if one fails."""
        trial = Trial(lambda folder: self._watched(session, folder), None)
        try:
            trial.wait()
            if trial.status != 0:
                print(trial.said())
                return 0
            calls: list[list[str]]
            used_s: float
            calls, used_s = json.loads((trial.folder / "calls").read_text(encoding="utf-8"))
        finally:
            trial.clear()
        self._calls = list(map(set, calls))
        limit_s = max(_LEAST_S, round(_TIMES_AS_LONG * used_s))
        names = " ".join(sorted({item.path.stem for item in self._items}))
        self._tell(None, limit_s, f"{len(self._items)} tests, {used_s:.1f} s: {names}")
        return limit_s

    def _watched(self, session: Any, folder: Path) -> int:
        called: list[set[str]] = []

        def marks_of(module: str) -> Callable[[str], object]:
            return lambda name: called[-1].add(f"{module}:{name}")

        called.append(set())
        for module, functions in self._functions.items():
            mark(module, functions, marks_of(module))
        status = _run_items(session, self._items, lambda: called.append(set()))
        del called[0]
        used = resource.getrusage(resource.RUSAGE_SELF)
        facts = ([sorted(each) for each in called], used.ru_utime + used.ru_stime)
        (folder / "calls").write_text(json.dumps(facts), encoding="utf-8")
        return status

    def _order(self, mutant: Mutant) -> list[int]:
        """Return the tests that call the function of a mutant, those that are likely to fail first."""
        name = function_of(mutant)
        if name is None:
            return []
        place = f"{mutant.module}:{name}"
        these = [index for index, calls in enumerate(self._calls) if place in calls]
        first = [index for index in self._first if index in these]
        return [*first, *(index for index in these if index not in first)]

    def _begin(self, session: Any, mutant: Mutant, limit_s: int) -> Trial:
        order = self._order(mutant)

        def work(folder: Path) -> int:
            if not swap(mutant, self._functions[mutant.module]):
                return _NOT_HERE
            passed: list[None] = []
            status = _run_items(session, [self._items[index] for index in order], lambda: passed.append(None))
            (folder / "last").write_text(str(order[len(passed) - 1]), encoding="utf-8")
            return status

        return Trial(work, limit_s)

    def _end(self, mutant: Mutant, trial: Trial) -> None:
        status = trial.status if trial.status is not None else BROKEN << 8
        if status == _FAILED << 8:
            last = int((trial.folder / "last").read_text(encoding="utf-8"))
            self._first = [last, *(index for index in self._first if index != last)][:20]
        self._tell(self._mutants.index(mutant), status >> 8 if status % 256 == 0 else _FAILED, trial.said())

    def _tell(self, *facts: object) -> None:
        self._report.write(f"{json.dumps(facts)}\n")
        self._report.flush()


def _run_items(session: Any, items: Sequence[Any], begins: Callable[[], None]) -> int:
    """Run tests until one fails."""
    for item, following in zip(items, (*items[1:], None), strict=True):
        begins()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return _FAILED
    return _PASSED
