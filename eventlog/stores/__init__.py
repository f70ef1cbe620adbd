"""The stores that keep the contract of `eventlog.log`, and the one way to open them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, overload

from eventlog.codec import REGISTRY, Registry
from eventlog.errors import InvalidInput
from eventlog.heads import HeadSigner
from eventlog.plain import Limits
from eventlog.scanning import DEFAULT_SCANNER, Scanner
from eventlog.stores.clock import Clock
from eventlog.stores.head_keeper import HeadTimes
from eventlog.stores.memory import MemoryLog
from eventlog.stores.open_arguments import (
    check_in_memory,
    check_scanner,
    check_signing,
    check_subject_keys,
    check_views,
)
from eventlog.stores.requests import check_actor
from eventlog.stores.sqlite import SqliteLog

if TYPE_CHECKING:
    from eventlog.stores.sqlite import InlineView
    from eventlog.stores.subject_keys import SubjectKeys

__all__ = ["MemoryLog", "SqliteLog", "open"]


@overload
def open(  # type: ignore[overload-overlap]  # "memory:" is a str, too, and the only one that is no path
    path: Literal["memory:"],
    *,
    actor: str | None = ...,
    registry: Registry = ...,
    limits: Limits | None = ...,
    clock: Clock | None = ...,
    scanner: Scanner | None = ...,
) -> MemoryLog: ...
@overload
def open(
    path: str | os.PathLike[str],
    *,
    actor: str | None = ...,
    registry: Registry = ...,
    limits: Limits | None = ...,
    durability: Literal["full", "normal"] = ...,
    busy_timeout_s: float = ...,
    settle_timeout_s: float = ...,
    may_create: bool = ...,
    is_read_only: bool = ...,
    views: Iterable[InlineView] = ...,
    clock: Clock | None = ...,
    signer: HeadSigner | None = ...,
    head_every_events: int = ...,
    head_every_s: float = ...,
    restored: str | None = ...,
    subject_keys: SubjectKeys | None = ...,
    scanner: Scanner | None = ...,
) -> SqliteLog: ...
def open(
    path: str | os.PathLike[str],
    *,
    actor: str | None = None,
    registry: Registry = REGISTRY,
    limits: Limits | None = None,
    durability: Literal["full", "normal"] = "full",
    busy_timeout_s: float = 5.0,
    settle_timeout_s: float = 5.0,
    may_create: bool = True,
    is_read_only: bool = False,
    views: Iterable[InlineView] = (),
    clock: Clock | None = None,
    signer: HeadSigner | None = None,
    head_every_events: int = 1000,
    head_every_s: float = 1.0,
    restored: str | None = None,
    subject_keys: SubjectKeys | None = None,
    scanner: Scanner | None = DEFAULT_SCANNER,
) -> SqliteLog | MemoryLog:
    """Return the log at `path`, to be used as `async with eventlog.open(path) as log`.

    `path` is an SQLite file, created if it is missing, or "memory:" for a log that ends with its object. `actor` names
    who appends, `os:<uid>` by default; never a person's name or address, for it stays in the log. `durability="normal"`
    lets a power cut take the last commits; `full` never does. `busy_timeout_s` is how long a call waits for other
    processes, and `settle_timeout_s` how long a failed commit may take to be settled before it is reported as unknown.

    `signer` signs heads of the log and keeps them elsewhere: at the latest `head_every_events` events or `head_every_s`
    seconds after a commit, in front of every effect that was decided on, and at the end. A log that does not go on from
    the last head that was signed is refused: `store_rolled_back`, `store_forked`. `restored` says why that is in order,
    and begins a new incarnation of the log, which has that for ever. `subject_keys` are needed to write, and to read in
    clear, streams that are about a subject. A log in memory takes a stream's subject and encrypts nothing: nothing of
    it reaches a disk, and it ends with its object.

    `scanner` looks for secrets in all that is appended, names too, and refuses it before anything is written; None
    looks at nothing. See `eventlog.scanning` for what it sees, and how to add to that.

    Raises InvalidInput; opening raises StoreUnavailable (`store_cannot_open`, `store_not_eventlog`, `schema_too_new`,
    …).
    """
    name = os.fspath(path)
    if type(name) is not str or not name or "\0" in name:  # callers without a type checker give bytes
        raise InvalidInput("invalid_argument", f"the path of a log is a text that names a file, not {name!r:.80}")
    actor = check_actor(actor if actor is not None else f"os:{os.getuid()}")
    check_scanner(scanner)
    if name == "memory:":
        given = {"is_read_only": is_read_only, "may_create": not may_create, "views": bool(tuple(views))}
        given |= {"signer": signer is not None, "restored": restored is not None}
        check_in_memory({**given, "subject_keys": subject_keys is not None})
        return MemoryLog(actor=actor, registry=registry, limits=limits, clock=clock, scanner=scanner)
    views = check_views(views)
    check_signing(signer, durability, (head_every_events, head_every_s), restored, is_read_only)
    check_subject_keys(subject_keys)
    return SqliteLog(
        name,
        actor=actor,
        registry=registry,
        limits=limits,
        durability=durability,
        busy_timeout_s=busy_timeout_s,
        settle_timeout_s=settle_timeout_s,
        may_create=may_create,
        is_read_only=is_read_only,
        views=views,
        clock=clock,
        signer=signer,
        head_times=HeadTimes(every_events=head_every_events, every_s=head_every_s),
        restored=restored,
        subject_keys=subject_keys,
        scanner=scanner,
    )
