"""What lies on the recorded disk, and what the engine is asked for there: the same for work and for recovery.

    log.db                    the log, its write-ahead log, its artifacts
    out/                      the targets of the effects
    private/keys/             the keys of subjects
    signer/key, key.heads     the signer of heads, in every second trace

The folders `out` and `signer` are durable before the engine is asked for anything; all else is its own business.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import eventlog
from eventlog import Runner, WriteFile
from eventlog.audit.heads import LocalSigner
from eventlog.audit.heads.key_file import make_key_file
from eventlog.stores import SqliteLog
from eventlog.stores.clock import Clock
from eventlog.stores.sqlite.wal import WalCheckpoints
from eventlog.stores.subject_keys import SubjectKeys
from tools.campaigns.storage.log_files import open_file

__all__ = [
    "ABOUT",
    "HEADS",
    "KEYS",
    "LOG",
    "REPORT",
    "SUBJECT",
    "TARGETS",
    "Effect",
    "effects_of",
    "is_killed",
    "is_signed",
    "make_report",
    "open_log",
    "prepare",
    "runner_on",
]

LOG: Final = "log.db"
TARGETS: Final = "out"
KEYS: Final = "private/keys"
ABOUT: Final = "about-1"
"""A stream whose bodies are encrypted under the key of `SUBJECT`."""
SUBJECT: Final = "ann"
REPORT: Final = "report-1"
"""A workflow run that has a step whose output is kept beside the log."""
_SIGNER: Final = "signer"
HEADS: Final = f"{_SIGNER}/key.heads"
_RUNS: Final = 5
_REPORT_CHARACTERS: Final = 70_000


@dataclass(frozen=True, slots=True)
class Effect:
    """A run that writes a file, once it is approved: exactly this text, to this path below the targets."""

    run_id: str
    path: str
    text: str


def effects_of(seed: str) -> list[Effect]:
    """Return the effects of the work with this seed: in the folder itself, and in folders that have to be made."""
    chance = random.Random(f"{seed}/effects")
    effects = []
    for number in range(_RUNS):
        folder = chance.choice(["", "", "a/", "a/b/"])
        size = chance.choice([0, 5, 511, 700, 3000, 9000])
        text = "".join(chance.choices("abcdefghij \n", k=size))
        effects.append(Effect(f"run-{number}", f"{folder}t{number}.txt", text))
    return effects


async def gather() -> str:
    return "x" * _REPORT_CHARACTERS


@eventlog.workflow
async def make_report(run: eventlog.RunContext) -> int:
    """A workflow whose step returns more than an event holds."""
    return len(await run.step("gather", gather))


def prepare(disk: Path, seed: str) -> None:
    """Make what has to be there, *durable* on return, and let WAL checkpoints be frequent, with and without a cut."""
    for name in (TARGETS, _SIGNER):
        os.makedirs(disk / name, exist_ok=True)
    folder = os.open(disk, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    if is_signed(seed) and not (disk / _SIGNER / "key").exists():
        make_key_file(disk / _SIGNER / "key")
    chance = random.Random(f"{seed}/limits")
    WalCheckpoints.SOFT_LIMIT = chance.choice([20, 40, 60]) * 1024
    WalCheckpoints.IDLE_LIMIT = 16 * 1024
    WalCheckpoints.CUT_LIMIT = WalCheckpoints.SOFT_LIMIT * chance.choice([1, 2])


def is_signed(seed: str) -> bool:
    """Every second trace is; a seed ends with `t` and the number of its trace."""
    return int(seed.rpartition("t")[2]) % 2 == 1


def is_killed(seed: str) -> bool:
    """Say whether in this trace a process is killed, and another one goes on: in every third one."""
    return int(seed.rpartition("t")[2]) % 3 == 2


def open_log(disk: Path, seed: str, clock: Clock | None = None) -> SqliteLog:
    """Return the log, to be opened, in full durability."""
    signer = LocalSigner(disk / _SIGNER / "key", clock=clock) if is_signed(seed) else None
    keys = SubjectKeys(disk / KEYS, wrapping_key=b"w" * 32)
    return open_file(disk / LOG, clock=clock, subject_keys=keys, signer=signer, head_every_events=10)


def runner_on(log: SqliteLog, disk: Path, clock: Clock | None = None) -> Runner:
    """Return what lets runs come to their effects."""
    root = disk / TARGETS
    return Runner(log, actions=[WriteFile(root=root)], workflows=[make_report], folder=str(disk), clock=clock)
