"""Campaign `fuzz`: hostile input for everything that takes bytes, texts or values from outside.

An input is refused with a coded error (or the ValueError that a pure function documents), or it is taken and comes back
as what it was: never a raw error (I8), never more than two seconds (I9), never another value (I10). Inputs are drawn
by generators that know the structures (`drawing`, `of_*`); each target has a corpus, and in the long tier, where it is
installed, `atheris` goes on from what it sees of the branches (`guided`).

A case is `TARGET/BLOCK/INDEX`, `TARGET/corpus/INDEX`, or `TARGET/bytes/HEX` for what the guided fuzzer found.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work
from tools.campaigns.fuzz import of_events, of_names, of_proofs, of_values
from tools.campaigns.fuzz.guided import GUIDED, can_guide, guide, run_bytes
from tools.campaigns.fuzz.of_commands import Commands
from tools.campaigns.fuzz.of_files import Paths
from tools.campaigns.fuzz.target import Target
from tools.campaigns.fuzz.trying import SLOWEST_S, corpus_of, spelled, try_input, try_slowly

__all__ = ["CAMPAIGN", "run"]

_TARGETS: Final = (*of_events.TARGETS, *of_values.TARGETS, *of_proofs.TARGETS, *of_names.TARGETS)
_BLOCK: Final = 100
_ENOUGH: Final = 500
"""Of so many inputs every target takes some."""
_MANY_IN_ONE: Final = frozenset({"lines"})
"""Targets of several parsers, which are hardly ever given what all of them take."""
_ALONE: Final = {"everything_is_refused": "time"}
"""The target that a control is about, where it shows only at the end."""


def run(work: Work) -> None:
    """Try the corpus, then block by block what is drawn, for each target as often as it is fast."""
    folder = tempfile.mkdtemp(dir=work.memory)
    paths = Paths(Path(folder) / "paths")
    try:
        commands = Commands(Path(folder) / "commands")
        _Fuzzing(work, (*_TARGETS, paths.target(), commands.target())).run()
        if _guided_runs(work):
            _guide_all(work)
    finally:
        paths.close()
        shutil.rmtree(folder, ignore_errors=True)


class _Fuzzing:
    """All targets, and how much was done with each."""

    def __init__(self, work: Work, targets: tuple[Target, ...]) -> None:
        self._work: Final = work
        self._targets: Final = [each for each in targets if _ALONE.get(work.control or "", each.name) == each.name]
        self._counts: Final[Counter[str]] = Counter()
        self._taken: Final[Counter[str]] = Counter()
        self._cpu_s: Final[dict[str, float]] = {target.name: 0.0 for target in targets}

    def run(self) -> None:
        """Do all that the tier asks for, or the one case."""
        if self._work.case is not None:
            return self._run_case(*self._work.case.split("/", 2))
        for target in self._targets:
            for number, given in enumerate(corpus_of(target)):
                self._try(target, given, f"{target.name}/corpus/{number}")
        for target, block in self._blocks():
            self._run_block(target, block)
        rates = (f"{name} {self._counts[name] / self._cpu_s[name]:.0f}" for name in self._counts if self._cpu_s[name])
        self._work.notes["inputs for each second of a processor"] = ", ".join(rates)
        self._require_taken()
        return None

    def _require_taken(self) -> None:
        """Report targets that refuse everything: then nothing is known of what they take."""
        shares = {name: self._taken[name] / count for name, count in self._counts.items() if name not in _MANY_IN_ONE}
        for name, share in shares.items():
            if share == 0 and self._counts[name] >= _ENOUGH:
                self._work.violation("I10", name, f"all of {self._counts[name]} inputs were refused")
        self._work.notes["taken"] = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())

    def _blocks(self) -> Iterator[tuple[Target, int]]:
        """Give the blocks of all targets in turn, so that each is looked at soon, and often in proportion."""
        shares = sum(target.share for target in self._targets)
        goal = self._work.goal("inputs") - (_guided_runs(self._work) if can_guide() else 0)
        wanted = {target.name: -(-goal * target.share // (shares * _BLOCK)) for target in self._targets}
        rounds = max(wanted.values())
        for turn in range(rounds):
            for target in self._targets:
                whole = wanted[target.name]
                for block in range(turn * whole // rounds, (turn + 1) * whole // rounds):
                    yield target, block

    def _run_block(self, target: Target, block: int) -> None:
        began_s = time.process_time()
        for number, given in enumerate(self._drawn(target, block)):
            self._try(target, given, f"{target.name}/{block}/{number}")
        took_s = time.process_time() - began_s
        if took_s > SLOWEST_S and target.is_guided:  # others have a state, and what they do to it is no slow input
            for number, given in enumerate(self._drawn(target, block)):
                self._try(target, given, f"{target.name}/{block}/{number}", is_timed=True)
        self._cpu_s[target.name] += took_s

    def _drawn(self, target: Target, block: int) -> Iterator[Any]:
        chance = random.Random(f"{self._work.seed}/{target.name}/{block}")
        return (target.draw(chance) for _ in range(_BLOCK))

    def _try(self, target: Target, given: Any, case: str, *, is_timed: bool = False) -> None:
        wrong = (try_slowly if is_timed else try_input)(target, given, self._taken)
        self._counts[target.name] += 1
        self._work.count("inputs")
        if target.name == "canonical":
            self._work.count("pairs")
        if wrong is not None:
            self._work.violation(wrong[0], case, f"{wrong[1]}, by {spelled(given)}")

    def _run_case(self, name: str, block: str = "", number: str = "") -> None:
        """Try one input again, or a whole block."""
        target = next((each for each in self._targets if each.name == name), None)
        if target is None:
            return
        if block == "bytes":
            self._work.wants(self._work.case or "")
            wrong = run_bytes(target, bytes.fromhex(number))
            if wrong is not None:
                self._work.violation(wrong.partition(" ")[0], f"{name}/{block}/{number}", wrong)
            return
        inputs = list(corpus_of(target) if block == "corpus" else self._drawn(target, int(block or 0)))
        for index, given in enumerate(inputs):
            if number in ("", str(index)):
                self._work.wants(self._work.case or "")
                self._try(target, given, f"{name}/{block}/{index}", is_timed=True)


def _guided_runs(work: Work) -> int:
    """Return how many of the inputs are left to the guided fuzzer, which is slow to begin and to tell."""
    return work.goal("inputs") // 10 if work.tier == "long" and work.control is None and work.case is None else 0


def _guide_all(work: Work) -> None:
    """Let the guided fuzzer go over each of its targets, or say that it is not there."""
    if not can_guide():
        work.notes["guided"] = "atheris is not installed for this Python: nothing was guided by coverage"
        return
    runs, said = _guided_runs(work) // len(GUIDED), []
    for name in GUIDED:
        count, seconds, branches, wrong = guide(name, runs, work.seed, work.folder)
        work.count("inputs", count)
        work.count("guided inputs", count)
        said.append(f"{name} {count / max(seconds, 1):.0f}/s {branches} branches")
        if wrong is not None:
            invariant, _, what = wrong.partition(" ")
            work.violation(invariant, f"{name}/bytes/{wrong.rpartition('bytes ')[2]}", what)
    work.notes["guided"] = ", ".join(said)


CAMPAIGN: Final = Campaign(
    name="fuzz",
    title="hostile bytes, texts, values, paths and commands are given to all that takes them",
    promise="an input is refused with a code, or comes back as what it was",
    faults=("F56", "F57", "F58", "F59", "F60", "F61", "F62", "F63", "F66"),
    invariants=("I8", "I9", "I10"),
    run=run,
    cases="[a-z_]+(/([0-9]+|corpus)(/[0-9]+)?|/bytes/([0-9a-f]{2})*)?",
    goals={
        "inputs": Goal(fast=200_000, long=10_000_000, control=40_000),
        "pairs": Goal(fast=20_000, long=1_000_000, control=1),
    },
    limit_s=Goal(fast=300, long=5400, control=300),
    controls=(
        Control(
            name="recursion_comes_out",
            what="a body that is nested too deeply is read without catching what Python says",
            breaks=(
                Break(
                    "eventlog/codec/readings.py",
                    "UNREADABLE: Final = (InvalidInput, msgspec.DecodeError, UnicodeDecodeError, RecursionError)",
                    "UNREADABLE: Final = (InvalidInput, msgspec.DecodeError, UnicodeDecodeError)",
                ),
            ),
            shows="I8 decoder/corpus/.*RecursionError",
        ),
        Control(
            name="large_floats_have_a_form",
            what="a float that is spelled like another integer has a canonical form",
            breaks=(
                Break(
                    "eventlog/proposal.py",
                    "    check_plain(msgspec.json.decode(canonical), limits, int_bits=_SAFE_INT_BITS)\n",
                    "",
                ),
            ),
            shows="I10 canonical/",
        ),
        Control(
            name="doubled_keys_are_taken",
            what="a key that stands twice in an object is no reason to refuse it",
            breaks=(Break("eventlog/plain.py", "        if key in result:\n", "        if False:\n"),),
            shows="I10 json/",
        ),
        Control(
            name="everything_is_refused",
            what="whatever is given as a time is refused",
            breaks=(
                Break(
                    "eventlog/times.py",
                    "    microseconds = _MICROSECONDS.fullmatch(text)\n",
                    '    raise InvalidInput("invalid_argument", "no time at all")\n',
                ),
            ),
            shows="I10 time: all of",
        ),
        Control(
            name="hidden_characters_are_taken",
            what="ids may hold characters that nobody sees",
            breaks=(
                Break(
                    "eventlog/plain.py",
                    '_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})',
                    '_HIDDEN: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})',
                ),
            ),
            shows="I10 id/",
        ),
        Control(
            name="paths_are_followed",
            what="a path below the root may lead through links, and up",
            breaks=(
                Break(
                    "eventlog/runtime/actions/directories.py",
                    "        return _openat2(root, path)\n",
                    "        return os.open(path, _PASS, dir_fd=root)\n",
                ),
            ),
            shows="I10 path/",
        ),
        Control(
            name="proofs_may_be_longer",
            what="a proof of inclusion may have more hashes than its tree has levels",
            breaks=(
                Break(
                    "eventlog/merkle.py",
                    "    for each in proof:\n        if last == 0:\n            return False\n",
                    "    for each in proof:\n        if last == 0:\n            break\n",
                ),
            ),
            shows="I10 merkle/",
        ),
    ),
)
