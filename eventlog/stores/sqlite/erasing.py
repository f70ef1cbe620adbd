"""The part of `SqliteLog` that erases: bodies, the keys of subjects, and what is left of both in the files."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from eventlog.errors import CommitOutcomeUnknown, Refused, StoreUnavailable
from eventlog.events import LOG_STREAM, SubjectErased
from eventlog.log import Append, AppendResult, Expect, NewEvent, RecordedEvent
from eventlog.stores.requests import Request, check_position
from eventlog.stores.sqlite.erasable import destroyed_among, sealed_keys
from eventlog.stores.sqlite.erasures import (
    Erased,
    Erasure,
    MakeErasure,
    are_noted,
    check_erasure_texts,
    payload_erased,
    streams_of,
)
from eventlog.stores.sqlite.files import file_size
from eventlog.stores.sqlite.transaction import Transactions
from eventlog.stores.sqlite.whole import CommitInDoubt
from eventlog.stores.sqlite.writer import MAX_TRIES, Writer

if TYPE_CHECKING:
    from eventlog.stores.body_cipher import BodyCipher
    from eventlog.stores.guard import Guard
    from eventlog.stores.sqlite.files import LogFiles
    from eventlog.stores.sqlite.reader import ReadConnections
    from eventlog.stores.sqlite.rows import Rows

__all__ = ["Erasing"]

_ERASED_AT_ONCE: Final = 1000
_PURGES: Final = 50
_PURGE_PAUSE_S: Final = 0.1


class Erasing:
    """What a log in SQLite can erase, and how."""

    _reads: ReadConnections
    _files: LogFiles
    _path: str
    _writer: Writer | None

    if TYPE_CHECKING:

        @property
        def _guard(self) -> Guard: ...

        @property
        def _cipher(self) -> BodyCipher | None: ...

        def _make_rows(self) -> Rows: ...

        def _tell_of_commit(self) -> None: ...

        def _request(
            self,
            appends: Sequence[Append],
            checks: Sequence[tuple[str, Expect]],
            actor: str | None,
            correlation_id: str | None,
            causation_id: bytes | None,
            *,
            is_reserved_allowed: bool = False,
        ) -> Request: ...

        async def find(self, event_id: bytes) -> RecordedEvent | None: ...

        async def append_reserved(
            self,
            appends: Sequence[Append],
            *,
            checks: Sequence[tuple[str, Expect]] = (),
            actor: str | None = None,
        ) -> list[AppendResult]: ...

    async def erase(
        self,
        positions: Collection[int],
        *,
        legal_basis: str,
        reason: str | None = None,
        actor: str | None = None,
        checks: Sequence[tuple[str, Expect]] = (),
    ) -> list[Erased]:
        """Erase the bodies of events for good, and say so in `$log` by one event each; *durable* on return.

        What an event's leaf needs stays, so every proof stays valid. Those that are erased already are passed over.
        With body and salt gone nothing can be compared any more: an append that is repeated with the id of an erased
        event counts as that event whatever its body is, as long as stream, type and schema version are the same; else
        it is an `event_id_conflict`.
        Snapshots of the streams go with them. Views, artifacts and exports hold copies: `eventlog.audit.erasure` sees
        to those too, and to the file itself (`purge`). Raises InvalidInput for a position that the log has not,
        Misuse(`not_erasable`) for an event about the log itself, LogCorrupt for an event that is damaged: what is left
        of it is evidence. Raises WrongExpectedVersion if one of the `checks` of streams does not hold.
        """
        self._guard.check()
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        texts = check_erasure_texts(legal_basis, reason)
        wanted = sorted({check_position(position, "position") for position in positions})
        erased: list[Erased] = []
        for first in range(0, len(wanted), _ERASED_AT_ONCE):
            some = wanted[first : first + _ERASED_AT_ONCE]
            found = await self._erase_some(some, lambda erasures: self._erasure(erasures, texts, actor, checks))
            erased += [Erased(*each) for each in found]
            self._tell_of_commit()
        return erased

    async def _erase_some(self, positions: Sequence[int], make_request: MakeErasure) -> list[tuple[int, int]]:
        """Erase what can be erased at once. Raises CommitOutcomeUnknown; asked again, it finds out."""
        assert self._writer is not None, "erasing takes a writer"
        why = ""
        for _ in range(MAX_TRIES):
            try:
                work = self._writer.transact(_erase, self._make_rows(), positions, make_request)
                return await self._files.in_time(work)
            except CommitInDoubt as doubt:
                erased: list[tuple[int, int]] = doubt.result
                if await self._reads.run(are_noted, erased):
                    return erased
                why = doubt.why
        raise CommitOutcomeUnknown([], f"it is unknown whether the bodies are erased: {why}")

    async def erase_subject(
        self,
        subject: str,
        *,
        legal_basis: str,
        reason: str | None = None,
        actor: str | None = None,
        checks: Sequence[tuple[str, Expect]] = (),
    ) -> AppendResult:
        """Destroy the key of a subject, with an event in `$log` that says so: what is encrypted under it is gone.

        The event comes first, so that a crash leaves a key that is known to be destroyed: repeating the call finishes
        it. Raises, before anything is written: StoreUnavailable(`subject_key_missing`) without the keys, and where this
        folder knows the subject of no stream here while there are streams whose keys it has not: it may be lost, or the
        one of another log; Refused(`unknown_subject`); WrongExpectedVersion if one of the `checks` of streams does not
        hold.
        """
        key_id = await self.subject_key_id(subject)
        assert self._cipher is not None, "it has the key's id"
        texts = check_erasure_texts(legal_basis, reason)
        result = await self._record_subject_erased(key_id, texts, actor, checks)
        await asyncio.to_thread(self._cipher.destroy, subject)
        if self._writer is not None:
            await self._writer.run_between(self._writer.connection.transactions.forget)
        return result

    async def _record_subject_erased(
        self,
        key_id: bytes,
        texts: tuple[str, str | None],
        actor: str | None,
        checks: Sequence[tuple[str, Expect]],
    ) -> AppendResult:
        """Say so once: the key's id is the event's. A repeat finds what was said first, whatever it says itself."""
        found = await self.find(key_id)
        if found is None:
            event = SubjectErased(key_id=key_id.hex(), legal_basis=texts[0], reason=texts[1])
            append = Append(LOG_STREAM, [NewEvent("subject_erased", event, event_id=key_id)], Expect.any())
            return (await self.append_reserved([append], checks=checks, actor=actor))[0]
        return AppendResult(
            stream=found.stream,
            version=found.version,
            first_position=found.position,
            last_position=found.position,
            leaf=found.leaf,
            recorded_at_us=found.recorded_at_us,
            deduplicated=True,
        )

    async def subject_key_id(self, subject: str) -> bytes:
        """Return the id of a subject's key, which stands in the log. Raises as `erase_subject`."""
        self._guard.check()
        if self._cipher is None:
            raise StoreUnavailable("subject_key_missing", "the log was opened without the keys of subjects")
        named = await self._reads.run(sealed_keys)
        key_id: bytes | None = None
        unknown: Refused | None = None
        try:
            key_id = await asyncio.to_thread(self._cipher.key_id_of, subject)
        except Refused as error:
            unknown = error
        if key_id not in named and await self._lost_keys(named):
            message = "streams of this log are encrypted under keys that are not in this folder: it is not whole, or"
            raise StoreUnavailable("subject_key_missing", f"{message} it is the one of another log; nothing was erased")
        if key_id is None:
            assert unknown is not None, "there is no key"
            raise unknown
        return key_id

    async def is_key_destroyed(self, subject: str) -> bool:
        """Say whether the key of a subject is destroyed, whatever the log says; raises as `erase_subject`.

        A copy that was put back from before an erasure does not know of it.
        """
        key_id = await self.subject_key_id(subject)
        assert self._cipher is not None, "it has the key's id"
        return await asyncio.to_thread(self._cipher.is_destroyed, key_id)

    async def has_unreadable_streams(self, *, but: str | None = None) -> bool:
        """Say whether a stream is encrypted under a key that is not here and was not destroyed; that of `but` is none.

        So nobody here can fold a view anew.
        """
        self._guard.check()
        keys = await self._reads.run(sealed_keys)
        own = await self.subject_key_id(but) if but is not None else None
        return bool(await self._lost_keys([key_id for key_id in keys if key_id != own]))

    async def _lost_keys(self, key_ids: Collection[bytes]) -> list[bytes]:
        """Return those of these keys that are not here, and of which the log does not say that they were destroyed."""
        destroyed = await self._reads.run(destroyed_among, key_ids)
        left = [key_id for key_id in key_ids if key_id not in destroyed]
        cipher = self._cipher
        if cipher is None:
            return left
        return await asyncio.to_thread(lambda: [key_id for key_id in left if not cipher.has(key_id)])

    async def subject_streams(self, subject: str) -> list[str]:
        """Return the streams that are encrypted under the key of a subject. Raises as `erase_subject`."""
        return await self._reads.run(streams_of, await self.subject_key_id(subject))

    async def purge(self) -> bool:
        """Move what was erased out of the write-ahead log, and cut that; False where a reader keeps it from that.

        Free space in the database is overwritten as it becomes free, so nothing of what was erased is left in the files
        then.
        """
        self._guard.check()
        if self._writer is None:
            raise StoreUnavailable("store_readonly", "the log was opened for reading only")
        for _ in range(_PURGES):
            await self._files.in_time(self._writer.run_between(self._writer.connection.wal.cut))
            if not file_size(f"{self._path}-wal"):
                return True
            await asyncio.sleep(_PURGE_PAUSE_S)
        return False

    def _erasure(
        self,
        erasures: Sequence[Erasure],
        texts: tuple[str, str | None],
        actor: str | None,
        checks: Sequence[tuple[str, Expect]],
    ) -> Request:
        events = [payload_erased(each, *texts) for each in erasures]
        append = Append(LOG_STREAM, events, Expect.any())
        return self._request([append], checks, actor, None, None, is_reserved_allowed=True)


def _erase(connection: sqlite3.Connection, transactions: Transactions, *args: Any) -> list[tuple[int, int]]:
    return transactions.erase(connection, *args)
