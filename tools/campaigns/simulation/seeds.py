"""One seed: drawn, run, judged; and what of it can be told apart from any other history."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from tools.campaigns.simulation.ending import finish
from tools.campaigns.simulation.judge import judge
from tools.campaigns.simulation.kernel import simulated
from tools.campaigns.simulation.living import live
from tools.campaigns.simulation.loop import Stuck
from tools.campaigns.simulation.notes import contradictions
from tools.campaigns.simulation.plan import draw
from tools.campaigns.simulation.world import World

__all__ = ["History", "simulate", "warm_up"]

_LIMIT_S: Final = 30_000.0
_LIMIT_STEPS: Final = 60_000
_WARM: Final = 30

_GRAVES: Final[list[object]] = []
"""What belongs to simulated processes that have ended in the middle of something, until this real process ends."""


@dataclass(slots=True)
class History:
    """What happened under one seed."""

    digest: str
    wrong: list[tuple[str, str]]
    counts: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)


def simulate(seed: str, control: str | None = None) -> History:
    """Run the simulation of a seed. Call this under `kernel.simulated()`, in a process that ends soon.

    What belongs to processes that have died is kept: they could not be forgotten without running the rest of them.
    """
    chance = random.Random(seed)
    world = World(seed, draw(chance, only_races=control is not None), chance, control)
    _GRAVES.append(world)
    return _simulated(world)


def warm_up() -> None:
    """Run what a simulation runs, without any fault, so that a process that is forked now begins at full speed.

    Nobody dies in it, so that nothing has to be kept.
    """
    with simulated():
        for number in range(_WARM):
            chance = random.Random(f"warm/{number}")
            plan = draw(chance)
            machines = tuple(replace(each, faults=(), is_worker=False) for each in plan.machines)
            plan.weather.calm()
            _simulated(World(f"warm/{number}", replace(plan, machines=machines), chance, None))


def _simulated(world: World) -> History:
    try:
        world.loop.run(_all(world), limit_s=_LIMIT_S, limit_steps=_LIMIT_STEPS)
    except Stuck as error:
        world.wrong.append(("I9", f"{error}; the last calls were {world.told[-3:]}"))
    world.receivers.collect_rows()
    events = world.disk.events
    wrong = [
        *world.wrong,
        *(("I8", message) for message in world.loop.broken),
        *judge(events, world.receivers.effects),
        *contradictions(world.notes, events),
    ]
    world.counts["steps"] += world.loop.steps
    world.counts["events"] += len(events)
    world.counts["effects"] += len(world.receivers.effects)
    said = "\n".join(
        [*world.told, f"{world.loop.steps} {world.loop.time()!r}", *(event.leaf.hex() for event in events)]
    )
    log = [f"{event.position} {event.stream} {event.version} {event.type} {event.body.decode()}" for event in events]
    return History(hashlib.sha256(said.encode()).hexdigest(), wrong, world.counts, world.told, log if wrong else [])


async def _all(world: World) -> None:
    for machine in world.plan.machines:
        world.begin(machine, live)
    await world.quiet()
    await finish(world)
