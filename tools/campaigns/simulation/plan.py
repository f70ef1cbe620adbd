"""What is drawn from a seed before anything happens: how many processes and runs, and which faults may come."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from eventlog.runtime.policies import Policy
from tools.campaigns.simulation.receivers import KINDS
from tools.campaigns.simulation.store import Weather

__all__ = ["Fault", "Machine", "Mood", "Plan", "Start", "draw"]

FaultKind = Literal["die", "suspend", "stand still", "jump", "cancel"]

Mood = Literal["mixed", "eager", "dissenting"]
"""What a process mostly does: a bit of everything, resume runs, or take back what was approved."""

_MOODS: Final[tuple[Mood, ...]] = ("mixed", "mixed", "eager", "eager", "dissenting")

_RACES: Final = 0.35
"""How many of the seeds are races."""

_RACED: Final = (*KINDS, "file", "file", "asked", "line")
"""What is raced for. A receiver that refuses nothing shows most of what can go wrong."""

# Most stories are small: what goes wrong shows in a small one, sooner or later, and of those there can be many.
_MACHINES: Final = (0.5, 0.4, 0.07, 0.03)
"""How likely it is that there are one, two, three, four processes."""
_RUNS: Final = (0.86, 0.09, 0.02, 0.01, 0.01, 0.01)
_OPERATIONS: Final = (0.6, 0.25, 0.09, 0.06)
_OPERATIONS_OF_RACERS: Final = (0.0, 0.5, 0.35, 0.15)

_DAY_S: Final = 86_400.0
_YEAR_S: Final = 365 * _DAY_S
_JUMPS_S: Final = (1.0, 30.0, 600.0, 3600.0, _DAY_S, 10 * _YEAR_S)


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a process before its callback number `step`: `seconds` is how long it lasts, or how far."""

    kind: FaultKind
    step: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One process: its host, how wrong its clock is, what it does and what happens to it."""

    name: str
    host: str
    begins_at_s: float
    skew_s: float
    operations: int
    mood: Mood
    pause_s: float
    """How long it rests between two operations, about."""
    is_worker: bool
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One run: of one action, or of a workflow with these arguments."""

    run_id: str
    story: int | None
    args: tuple[Any, ...]
    machine: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole scenario."""

    is_fair: bool
    weather: Weather
    machines: tuple[Machine, ...]
    starts: tuple[Start, ...]
    policies: dict[str, Policy]
    lease_s: float
    patience_s: float
    key_life_s: float
    clock_error_s: float
    has_notes: bool


def draw(chance: random.Random, *, only_races: bool = False) -> Plan:
    """Return what the seed says. With `only_races` it is a race in any case: what is broken shows sooner in those."""
    return _draw_race(chance) if chance.random() < _RACES or only_races else _draw_anything(chance)


def _draw_anything(chance: random.Random) -> Plan:
    clocks = chance.random()
    faults = [kind for kind in ("die", "suspend", "cancel") if chance.random() < 0.4]
    if clocks < 0.5:
        faults.append("jump")
    elif clocks < 0.6:  # a clock that jumps and one that stands still hide each other: nobody could tell
        faults.append("stand still")
    count = _pick(chance, _MACHINES) + 1
    hosts = chance.choice(("a", "a", "ab"))
    is_skewed = clocks < 0.7 and chance.random() < 0.3
    machines = tuple(_machine(chance, number, hosts, faults, is_skewed=is_skewed) for number in range(count))
    runs = _pick(chance, _RUNS) + 1
    starts = tuple(_start(chance, number, count) for number in range(runs))
    return _plan(chance, _weather(chance), machines, starts, _policies(chance))


def _draw_race(chance: random.Random) -> Plan:
    """Return a plan in which two or three processes do their best to act on one run at the same time."""
    longest_s = chance.choice((0.05, 1.0))
    kinds = [kind for kind in ("die", "suspend", "cancel", "jump") if chance.random() < 0.2]
    drawn = [_machine(chance, number, "a", kinds, is_skewed=False) for number in range(chance.choice((2, 2, 3)))]
    machines = tuple(
        replace(
            each,
            begins_at_s=chance.random() * longest_s if number else 0.0,
            mood=chance.choice(("eager", "dissenting")) if number else "eager",
            pause_s=longest_s * chance.choice((0.1, 0.5)),
            operations=_pick(chance, _OPERATIONS_OF_RACERS) + 1,
        )
        for number, each in enumerate(drawn)
    )
    kind, story = chance.choice(_RACED), chance.choice((None, None, 0))
    policies = {each: Policy(auto=True) for each in KINDS} if chance.random() < 0.85 else _policies(chance)
    weather = Weather(slow=chance.choice((0.5, 0.9)), longest_s=longest_s)
    if chance.random() < 0.5:
        weather.lost = 0.7
    if chance.random() < 0.2:
        weather.busy = 0.1
    return _plan(chance, weather, machines, (Start("run-0", story, (kind,), 0),), policies)


def _plan(
    chance: random.Random,
    weather: Weather,
    machines: tuple[Machine, ...],
    starts: tuple[Start, ...],
    policies: dict[str, Policy],
) -> Plan:
    jumps = (abs(fault.seconds) for each in machines for fault in each.faults if fault.kind == "jump")
    return Plan(
        is_fair=chance.random() < 0.5,
        weather=weather,
        machines=machines,
        starts=starts,
        policies=policies,
        lease_s=chance.choice((1.0, 5.0, 60.0, 300.0)),
        patience_s=chance.choice((0.0, 5.0)),
        key_life_s=chance.choice((5.0, 3600.0, _DAY_S)),
        clock_error_s=sum(abs(each.skew_s) for each in machines) + sum(jumps),
        has_notes=chance.random() < 0.3,
    )


def _weather(chance: random.Random) -> Weather:
    weather = Weather(longest_s=chance.choice((0.05, 1.0, 10.0)))
    if chance.random() < 0.7:
        weather.slow = chance.choice((0.05, 0.3, 0.8))
    if chance.random() < 0.3:
        weather.busy = chance.choice((0.02, 0.1))
    if chance.random() < 0.3:
        weather.unknown = chance.choice((0.02, 0.1))
    if chance.random() < 0.2:
        weather.refused = 0.2
    if chance.random() < 0.25:
        weather.lost = chance.choice((0.1, 0.5))
    return weather


def _machine(chance: random.Random, number: int, hosts: str, kinds: list[str], *, is_skewed: bool) -> Machine:
    faults = [fault for kind in kinds if (fault := _fault(chance, kind)) is not None]
    if "jump" in kinds and chance.random() < 0.6:
        faults += [fault for _ in range(2) if (fault := _fault(chance, "jump")) is not None]
    return Machine(
        name=f"process-{number}",
        host=hosts[number % len(hosts)],
        begins_at_s=chance.random() * chance.choice((0.1, 2.0)) if number else 0.0,
        skew_s=chance.uniform(-5.0, 5.0) if is_skewed else 0.0,
        operations=_pick(chance, _OPERATIONS) + 1,
        mood=chance.choice(_MOODS),
        pause_s=chance.choice((0.02, 0.5)),
        is_worker=chance.random() < 0.12,
        faults=tuple(sorted(faults, key=lambda fault: fault.step)),
    )


def _fault(chance: random.Random, kind: str) -> Fault | None:
    if chance.random() < 0.3:
        return None
    step = int(chance.expovariate(1 / 60)) + 1
    match kind:
        case "die":
            return Fault("die", step, chance.random() * 5.0)
        case "suspend":
            return Fault("suspend", step, chance.choice((0.5, 5.0, 60.0, 400.0)))
        case "stand still":
            return Fault("stand still", step, chance.choice((5.0, 60.0, 400.0)))
        case "jump":
            return Fault("jump", step, chance.choice((-1.0, 1.0)) * chance.choice(_JUMPS_S))
        case _:
            return Fault("cancel", step)


def _start(chance: random.Random, number: int, machines: int) -> Start:
    run_id, machine = f"run-{number}", chance.randrange(machines)
    kind, other = chance.choice(KINDS), chance.choice(KINDS)
    if chance.random() < 0.6:
        return Start(run_id, None, (kind,), machine)
    story = chance.randrange(5)
    args: tuple[Any, ...] = (kind,)
    if story in (1, 4):
        args = (kind, other)
    elif story in (2, 3):
        args = (kind, chance.choice((0.5, 20.0)))
    return Start(run_id, story, args, machine)


def _policies(chance: random.Random) -> dict[str, Policy]:
    found = {}
    for kind in KINDS:
        drawn = chance.random()
        if drawn < 0.35:
            found[kind] = Policy(auto=True)
        elif drawn < 0.5:
            found[kind] = Policy(expires_in_s=chance.choice((1.0, 10.0, 600.0)))
        elif drawn < 0.6:
            found[kind] = Policy(required=2, expires_in_s=chance.choice((None, 600.0)))
    return found


def _pick(chance: random.Random, weights: tuple[float, ...]) -> int:
    """Return an index, each as likely as its weight says."""
    left = chance.random()
    for index, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return index
    return 0
