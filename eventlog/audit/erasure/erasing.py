"""The steps of an erasure, in an order in which a crash between any two leaves something that a repeat finishes.

    refuse      everything that can be refused is, before anything is written
    noted       the artifacts that the events name are noted beside them, for the names go with the bodies
    erased      bodies and salts are gone, or the subject's key is, and events in `$log` say so; snapshots go with them
    artifacts   those that no event names any more are overwritten and removed
    views       those that may hold something are built again, or dropped
    purged      the write-ahead log is moved into the database and cut

Repeating a call is always safe: what is erased already is passed over, and everything behind that is done again.

A value that a run stores as an artifact in the same moment in which the same value is erased elsewhere may be removed
between its being kept and its being named; such a run is then told `artifact_missing`, and its value was to be erased.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from eventlog.audit.erasure.scope import Scope, require_over, scope_of_positions, scope_of_run, scope_of_stream
from eventlog.audit.erasure.views import KnownViews, ViewPlan, drop_unknown, plan_views, rebuild_known
from eventlog.errors import InvalidInput, Misuse, StoreUnavailable
from eventlog.stores.artifacts import artifacts_beside
from eventlog.stores.erased_artifacts import ErasedArtifacts
from eventlog.stores.sqlite import SqliteLog
from eventlog.stores.sqlite.erasable import held_in_streams, named_artifacts, overwrites_what_is_deleted
from eventlog.stores.sqlite.erasures import check_erasure_texts

__all__ = ["STEPS", "Erasure", "Plan", "erase", "erase_subject", "plan_erasure", "plan_subject_erasure"]

STEPS: Final = ("noted", "erased", "artifacts", "views", "purged")
"""What `on_step` is told, in this order, each time a step is done."""

_OUT_OF_REACH: Final = (
    "backups, and copies of the database, of its folder and of the disk",
    "exports, reports and packs that were made before: make them again",
    "transcripts: remove those of these streams, and `repair(log)` writes them again",
    "views in files of their own: build them again with `projections rebuild NAME --into FILE --drop-old`",
    "what effects have done: the files, rows and requests that runs have written, in tables of this database as well",
    "what other programs have read, and hold in memory or have sent on",
    "names of streams, actors, event types and correlation ids, and the hashes of proposals and arguments",
)
_OF_A_SUBJECT: Final = "what stands about the subject in streams that are not encrypted under its key"

OnStep = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """What an erasure is going to do. Nothing was written yet, and nothing speaks against it."""

    scope: Scope
    views: ViewPlan


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `erased` counts the bodies that went now, `already` those that were gone before.

    `failed_views` says why a view could not be built again: it holds what it held. `is_purged` is False while a reader
    keeps the write-ahead log from being cut, which holds copies then.
    """

    positions: tuple[int, ...]
    streams: tuple[str, ...]
    erased: int = 0
    already: int = 0
    subject_key: str | None = None
    """The id of the key that was destroyed, 32 hex digits."""
    artifacts: tuple[str, ...] = ()
    """The digests of those that were removed."""
    kept_artifacts: tuple[str, ...] = ()
    """Those that other events name, which are not erased."""
    rebuilt_views: tuple[str, ...] = ()
    dropped_views: tuple[str, ...] = ()
    failed_views: dict[str, str] = {}
    is_purged: bool
    handed_on: tuple[str, ...] = ()
    """Runs that the work was handed on to; they are not erased."""
    out_of_reach: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing of it is left in the log's own files."""
        return self.is_purged and not self.failed_views


async def plan_erasure(
    log: SqliteLog,
    *,
    views: KnownViews,
    positions: Iterable[int] | None = None,
    run: str | None = None,
    stream: str | None = None,
    drop_unknown_views: bool = False,
) -> Plan:
    """Return what `erase` would do. Raises as that does; nothing is written."""
    await _require_able(log)
    if sum(each is not None for each in (positions, run, stream)) != 1:
        raise InvalidInput(
            "invalid_argument", "an erasure is of `positions`, of a `run` or of a `stream`; of one of them"
        )
    if run is not None:
        scope = await scope_of_run(log, run)
    elif stream is not None:
        scope = await scope_of_stream(log, stream)
    else:
        scope = await scope_of_positions(log, positions or ())
    return Plan(scope, await _plan_views(log, views, scope.held, drop_unknown_views))


async def erase(
    log: SqliteLog,
    *,
    legal_basis: str,
    views: KnownViews,
    positions: Iterable[int] | None = None,
    run: str | None = None,
    stream: str | None = None,
    reason: str | None = None,
    actor: str | None = None,
    drop_unknown_views: bool = False,
    on_step: OnStep = lambda _: None,
) -> Erasure:
    """Erase events at these positions, those of a run with what it has started, or those of a stream, everywhere.

    `views` are those that this program can build again: `RebuildableViews(log, [SqliteView(…), …])` of `projections`
    with every view that stands in the log's database, those of the command line too.
    Raises, before anything is written: Refused (`run_open` for a run that has not ended, `view_unknown_here` for a view
    that cannot be built again, unless they are dropped), Misuse(`not_erasable`, `erasure_unsupported`), InvalidInput,
    StoreUnavailable. `on_step` is called behind each of `STEPS`.
    """
    check_erasure_texts(legal_basis, reason)
    plan = await plan_erasure(
        log, views=views, positions=positions, run=run, stream=stream, drop_unknown_views=drop_unknown_views
    )
    scope, artifacts = plan.scope, _artifacts_of(log)
    await asyncio.to_thread(artifacts.note, scope.artifacts)
    on_step("noted")
    erased = await log.erase(scope.positions, legal_basis=legal_basis, reason=reason, actor=actor, checks=scope.checks)
    on_step("erased")
    done = {"positions": scope.positions, "streams": scope.streams, "handed_on": scope.handed_on}
    counts = {"erased": len(erased), "already": len(scope.positions) - len(erased)}
    return await _finished(log, plan, views, on_step, _OUT_OF_REACH, **done, **counts)


async def plan_subject_erasure(
    log: SqliteLog, subject: str, *, views: KnownViews, drop_unknown_views: bool = False
) -> Plan:
    """Return what `erase_subject` would do. Raises as that does; nothing is written."""
    await _require_able(log)
    streams = await log.subject_streams(subject)
    # Without its key no run goes on: where an older copy was put back they look open, and nothing can end them.
    versions = {} if await log.is_key_destroyed(subject) else await require_over(log, streams)
    held = await log.look(held_in_streams, streams)
    return Plan(Scope((), versions), await _plan_views(log, views, held, drop_unknown_views, but=subject))


async def erase_subject(
    log: SqliteLog,
    subject: str,
    *,
    legal_basis: str,
    views: KnownViews,
    reason: str | None = None,
    actor: str | None = None,
    drop_unknown_views: bool = False,
    on_step: OnStep = lambda _: None,
) -> Erasure:
    """Destroy the key of a subject, and with it what is encrypted under it in every copy; build the views again.

    Raises as `erase`, and Refused(`unknown_subject`), StoreUnavailable(`subject_key_missing`).
    """
    check_erasure_texts(legal_basis, reason)
    plan = await plan_subject_erasure(log, subject, views=views, drop_unknown_views=drop_unknown_views)
    on_step("noted")
    await log.erase_subject(subject, legal_basis=legal_basis, reason=reason, actor=actor, checks=plan.scope.checks)
    on_step("erased")
    streams = await log.subject_streams(subject)
    key_id = await log.subject_key_id(subject)
    beyond = (*_OUT_OF_REACH, _OF_A_SUBJECT)
    return await _finished(
        log, plan, views, on_step, beyond, positions=(), streams=tuple(streams), subject_key=key_id.hex()
    )


async def _finished(
    log: SqliteLog, plan: Plan, views: KnownViews, on_step: OnStep, beyond: tuple[str, ...], **done: Any
) -> Erasure:
    """Do what follows the erasure in the log itself, whether it was done now or before."""
    removed, kept = await _erase_artifacts(log, plan.scope.artifacts)
    on_step("artifacts")
    failed = await rebuild_known(log, views, plan.views.rebuilt)
    await drop_unknown(log, plan.views.dropped)
    on_step("views")
    is_purged = await log.purge()
    on_step("purged")
    return Erasure(
        **done,
        artifacts=removed,
        kept_artifacts=kept,
        rebuilt_views=tuple(name for name in plan.views.rebuilt if name not in failed),
        dropped_views=plan.views.dropped,
        failed_views=failed,
        is_purged=is_purged,
        out_of_reach=beyond,
    )


async def _erase_artifacts(log: SqliteLog, own: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove the artifacts of this erasure, and of those that were interrupted, unless other events name them."""
    artifacts = _artifacts_of(log)
    wanted = await asyncio.to_thread(artifacts.noted) | frozenset(own)
    named = await log.look(named_artifacts, wanted) if wanted else frozenset[str]()
    removed = await asyncio.to_thread(artifacts.erase, wanted - named)
    await asyncio.to_thread(artifacts.erase_remnants)
    await asyncio.to_thread(artifacts.forget_notes)
    return tuple(removed), tuple(sorted(named & frozenset(own)))


def _artifacts_of(log: SqliteLog) -> ErasedArtifacts:
    return ErasedArtifacts(artifacts_beside(log.place))


async def _require_able(log: SqliteLog) -> None:
    """Raise Misuse(`erasure_unsupported`) for a log in memory or with a mirror, and what else keeps it from that."""
    if not isinstance(log, SqliteLog):
        message = f"a {type(log).__name__} keeps copies that cannot be erased from here; nothing was erased"
        raise Misuse("erasure_unsupported", message)
    if not await log.write_view(overwrites_what_is_deleted):
        raise StoreUnavailable(
            "store_cannot_open", "the database does not overwrite what is deleted; nothing was erased"
        )


async def _plan_views(
    log: SqliteLog, views: KnownViews, held: Iterable[tuple[str, str]], drops_unknown: bool, *, but: str | None = None
) -> ViewPlan:
    plan = await plan_views(log, views, frozenset(held), drops_unknown=drops_unknown)
    if plan.rebuilt and await log.has_unreadable_streams(but=but):
        message = "views have to be built again from streams that are encrypted, and their keys are not here"
        raise StoreUnavailable("subject_key_missing", f"{message}; nothing was erased")
    return plan
