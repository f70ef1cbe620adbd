"""How much of everything: enough for figures to rely on, a quick look, or just enough to see that it works."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["FULL", "LONG", "QUICK", "TINY", "Scale"]


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of events unless they say something else; `…_each` is for each task and each round.

    `workflows` is how many of them, of `steps` each, run at once.
    """

    name: str
    rounds: int
    single_each: int
    hundred_each: int
    thousand_each: int
    batches: int
    stream: int
    loads: int
    feed: int
    rebuilt: int
    history: int
    history_batches: int
    checkpoints: int
    size_repetitions: int
    contest_s: float
    contest_rounds: int
    synced_commits: int
    workflows: int
    steps: int
    workflow_rounds: int
    worker_rounds: int
    recovery_steps: int
    recovery_rounds: int
    storage_steps: int
    crowd_s: float
    crowd_rounds: int


FULL: Final = Scale(
    name="full",
    rounds=7,
    single_each=2000,
    hundred_each=200,
    thousand_each=40,
    batches=40,
    stream=1000,
    loads=20,
    feed=100_000,
    rebuilt=1_000_000,
    history=1_000_000,
    history_batches=20,
    checkpoints=1000,
    size_repetitions=8,
    contest_s=12,
    contest_rounds=3,
    synced_commits=50,
    workflows=1000,
    steps=10,
    workflow_rounds=5,
    worker_rounds=3,
    recovery_steps=1000,
    recovery_rounds=5,
    storage_steps=100,
    crowd_s=4,
    crowd_rounds=5,
)

LONG: Final = msgspec.structs.replace(FULL, name="long", history=10_000_000, rebuilt=10_000_000)

QUICK: Final = Scale(
    name="quick",
    rounds=3,
    single_each=800,
    hundred_each=60,
    thousand_each=10,
    batches=10,
    stream=1000,
    loads=5,
    feed=20_000,
    rebuilt=100_000,
    history=100_000,
    history_batches=10,
    checkpoints=20,
    size_repetitions=1,
    contest_s=3,
    contest_rounds=1,
    synced_commits=20,
    workflows=1000,
    steps=10,
    workflow_rounds=3,
    worker_rounds=1,
    recovery_steps=1000,
    recovery_rounds=3,
    storage_steps=100,
    crowd_s=2,
    crowd_rounds=3,
)

TINY: Final = Scale(
    name="tiny",
    rounds=1,
    single_each=5,
    hundred_each=1,
    thousand_each=1,
    batches=1,
    stream=100,
    loads=1,
    feed=1000,
    rebuilt=1000,
    history=1000,
    history_batches=1,
    checkpoints=2,
    size_repetitions=1,
    contest_s=0.3,
    contest_rounds=1,
    synced_commits=5,
    workflows=3,
    steps=2,
    workflow_rounds=1,
    worker_rounds=1,
    recovery_steps=5,
    recovery_rounds=1,
    storage_steps=5,
    crowd_s=0.1,
    crowd_rounds=1,
)
