"""Mutation score of what decides: how many small mistakes in it would be noticed by the tests that belong to it.

    python3 tools/mutation [--sample N] [--seed S] [--at-least PERCENT] [MODULE…]

Makes the mutants of `mutants.py`, all or N of them by chance, and runs for each the tests that belong to its module. A
mutant is killed if a test fails, if nothing can be imported any more, or if the tests take many times as long as they
should; else it survives, and is shown as the line that was and the line that is. Those of `equivalents.py`,
which no test can tell from the original, are not counted. The exit status is 1 under `--at-least`.

How a mutant is tried is told in `trials.py`: in a process of its own, without a word written to the sources.

Why a tool of our own: mutmut 3.8 was tried on `entry.py` and on `codec`, and runs there. But it changes only what is in
functions without decorators, and so nothing of the layout of an entry, of the defaults of a Struct or of a property; it
leaves out no statement, as the call that checks an entry, and turns no bare condition round; it changes the words of
messages, which were three of the seven that survived in `entry.py`; it takes no sample and knows no equivalent mutants.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tools.mutation.equivalents import EQUIVALENT
from tools.mutation.mutants import Mutant, mutants_of
from tools.mutation.mutated_code import ROOT, source_of
from tools.mutation.trials import Outcome, run_mutants

__all__ = ["TESTS", "chosen_mutants", "main", "modules_of"]

TESTS: Final[dict[str, tuple[str, ...]]] = {
    "eventlog/codec": ("test_codec", "test_upcasting", "test_events"),
    "eventlog/decide": ("test_refusals", "test_proofs", "test_verdicts", "test_people", "test_run"),
    "eventlog/entry.py": ("test_entry",),
    "eventlog/proposal.py": ("test_proposal", "test_run"),
    "eventlog/run.py": ("test_run_states", "test_run", "test_people"),
}
"""Which test modules belong to which module or folder: the first entry that fits. They run in order until one fails."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the score of each module. Return 0, or 1 if the score is not reached."""
    parser = argparse.ArgumentParser(description="mutation score of decide, run, proposal, entry and codec")
    parser.add_argument("--sample", type=int, help="how many mutants, by chance (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="which ones (default: 1)")
    parser.add_argument("--at-least", type=float, default=90.0, metavar="PERCENT", help="the score to reach (90)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (default: all cores)")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="files or folders (default: all that is measured)")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no process is left behind
    mutants = chosen_mutants(modules_of(chosen.modules or list(TESTS)), chosen.sample, chosen.seed)
    print(f"mutation: {len(mutants)} mutants, seed {chosen.seed}", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="eventlog-bytecode-") as sys.pycache_prefix:
        try:
            _run(mutants, chosen.jobs, outcomes)
        finally:  # whoever stops it sees what there is
            score = _print_scores(outcomes)
    return 0 if score >= chosen.at_least else 1


def _run(mutants: Sequence[Mutant], jobs: int, outcomes: list[Outcome]) -> None:
    for tests in dict.fromkeys(_tests_of(mutant.module) for mutant in mutants):
        files = [f"tests/{name}.py" for name in tests]
        for outcome in run_mutants([each for each in mutants if _tests_of(each.module) == tests], files, jobs):
            outcomes.append(outcome)
            if not outcome.is_killed:
                _show(outcome.mutant)


def modules_of(names: Iterable[str]) -> list[str]:
    """Return the files that are named, and those in folders that are named, each relative to the project."""
    paths: list[Path] = []
    for name in names:
        path = ROOT / name
        if not path.exists() or not path.resolve().is_relative_to(ROOT):
            raise SystemExit(f"mutation: there is no {name} in this project")
        paths += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return list(dict.fromkeys(path.relative_to(ROOT).as_posix() for path in paths))


def chosen_mutants(modules: Iterable[str], sample: int | None, seed: int) -> list[Mutant]:
    """Return the mutants of these modules that are not known to be equivalent, or `sample` of them by chance."""
    mutants = []
    for module in modules:
        source = source_of(module)
        mutants += [mutant for mutant in mutants_of(module, source) if not _is_equivalent(mutant, source)]
    if sample is None or sample >= len(mutants):
        return mutants
    return sorted(random.Random(seed).sample(mutants, sample), key=lambda mutant: (mutant.module, mutant.start))


def _tests_of(module: str) -> tuple[str, ...]:
    for place, tests in TESTS.items():
        if module == place or module.startswith(f"{place}/"):
            return tests
    raise SystemExit(f"mutation: which tests belong to {module}? (TESTS in {Path(__file__).name})")


def _is_equivalent(mutant: Mutant, source: str) -> bool:
    return (mutant.module, *mutant.lines(source)) in EQUIVALENT


def _show(mutant: Mutant) -> None:
    before, after = mutant.lines(source_of(mutant.module))
    print(f"survived: {mutant.module}:{mutant.line} ({mutant.operator})\n  - {before}\n  + {after}", flush=True)


def _print_scores(outcomes: Sequence[Outcome]) -> float:
    """Print a line for each module and one for all; return the score of all."""
    for module in dict.fromkeys(outcome.mutant.module for outcome in outcomes):
        _print_score(module, [outcome for outcome in outcomes if outcome.mutant.module == module])
    return _print_score("all", outcomes)


def _print_score(name: str, outcomes: Sequence[Outcome]) -> float:
    killed = sum(outcome.is_killed for outcome in outcomes)
    score = 100 * killed / len(outcomes) if outcomes else 100.0
    print(f"{name:<32} {killed:>5} of {len(outcomes):>5} killed  {score:6.1f} %", flush=True)
    return score


if __name__ == "__main__":
    raise SystemExit(main())
