"""What the log of a trace holds at its end, and what must therefore be left by a power cut at any moment of it.

A log only grows. So whatever a cut leaves has to be a beginning of what the log was in the end, row for row: anything
else is an event that moved, changed or was never appended. The end itself is checked in full, hash by hash.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventlog.entry import BODY_PLAIN, NO_HASH, NO_ID, Entry, encode, leaf_hash, prefixed, seal
from eventlog.merkle import Frontier
from eventlog.sealed import parse_sealed, stored_hash
from eventlog.stores.artifacts import artifact_in, artifacts_beside
from tools.campaigns.power_cuts.scene import KEYS, LOG, TARGETS, Effect
from tools.campaigns.power_cuts.trace import Told, Trace

__all__ = ["NOTHING", "History", "Rows", "Wrong", "content_at", "read_rows"]

_EVENTS: Final = "SELECT * FROM events ORDER BY position"
_NAMES: Final = {
    "streams": "SELECT stream_id, name FROM streams ORDER BY stream_id",
    "types": "SELECT type_id, name FROM types ORDER BY type_id",
    "actors": "SELECT actor_id, name FROM actors ORDER BY actor_id",
}
_TREE: Final = "SELECT size, frontier FROM tree"
_LOG_ID: Final = "SELECT log_id FROM log_ids"
_IS_CREATED: Final = "SELECT count(*) FROM sqlite_schema WHERE name = 'tree'"
_RESULTS: Final = ("action_executed", "action_recovered")


class Wrong(Exception):
    """The log contradicts itself, or what is known of it; `invariant` is the one that does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(what)
        self.invariant = invariant
        self.what = what


class Rows(NamedTuple):
    """The tables of a log, as SQLite returns them."""

    events: list[tuple[Any, ...]]
    names: list[list[tuple[int, str]]]
    tree: list[tuple[int, bytes]]
    log_id: list[tuple[bytes]]


NOTHING: Final = Rows([], [[], [], []], [(0, b"")], [])


def read_rows(connection: sqlite3.Connection) -> Rows:
    """Return what the log holds, nothing if it was not created yet. Raises sqlite3.Error."""
    execute = connection.execute
    execute("BEGIN")
    try:
        if execute(_IS_CREATED).fetchone() == (0,):
            return NOTHING
        events = execute(_EVENTS).fetchall()
        names = [execute(query).fetchall() for query in _NAMES.values()]
        return Rows(events, names, execute(_TREE).fetchall(), execute(_LOG_ID).fetchall())
    finally:
        execute("ROLLBACK")


@dataclass(frozen=True, slots=True)
class _Steps:
    """Where in the log the intent and the result of an effect are."""

    intent: int | None
    result: int | None


class History:
    """The events of a log at the end of a trace. Raises Wrong unless all of it is right, and as the caller was told."""

    def __init__(
        self, rows: Rows, trace: Trace, effects: Sequence[Effect], folder: Path | None = None, durable: int = 0
    ) -> None:
        self.rows: Final = rows
        self._effects: Final = effects
        self._frontiers: Final = _check(rows)
        self._told: Final = _told(trace, rows, durable)
        self._steps: Final = _steps(rows, effects)
        self._needs: Final = [] if folder is None else _needs(rows, folder)

    def events_of(self, found: Rows) -> int:
        """Return how many events were found. Raises Wrong unless they are the first of this log, and their tree too."""
        count = len(found.events)
        if found.events != self.rows.events[:count]:
            raise Wrong("I2", f"of {count} events some are not those that were appended")
        if found.tree != [(count, self._frontiers[count])] if count <= len(self.rows.events) else True:
            raise Wrong("I2", f"the tree is not that of the {count} events in the log")
        for names, known in zip(found.names, self.rows.names, strict=True):
            if names != known[: len(names)]:
                raise Wrong("I2", "a name stands for another than it did")
        if found.log_id not in ([], self.rows.log_id):
            raise Wrong("I2", "the log is another one")
        return count

    def told_at(self, moment: int) -> int:
        """Return up to which position events were acknowledged before the operation `moment` of the trace."""
        return self._told[moment]

    def check_files(self, count: int, content_at: Callable[[str], bytes | None]) -> None:
        """Raise Wrong unless the files beside a log of `count` events are what it allows, and all that it needs."""
        for effect in self._effects:
            self._check_target(effect, count, content_at(f"{TARGETS}/{effect.path}"))
        for position, path, content in self._needs:
            if position <= count and content_at(path) != content:
                raise Wrong("I1", f"the event at position {position} has lost {path}")

    def check_heads(self, signed: int, content_at: Callable[[str], bytes | None]) -> None:
        """Raise Wrong if an effect is there whose intent is not among the events of the last head that was signed."""
        for effect in self._effects:
            intent = self._steps[effect.run_id].intent
            if (intent is None or intent > signed) and content_at(f"{TARGETS}/{effect.path}") is not None:
                raise Wrong("I5", f"{effect.path} is there, and the intent of {effect.run_id} is under no signed head")

    def _check_target(self, effect: Effect, count: int, content: bytes | None) -> None:
        steps = self._steps[effect.run_id]
        if content is None:
            if steps.result is not None and steps.result <= count:
                raise Wrong("I6", f"{effect.run_id} has a result event and {effect.path} is not there")
        elif content != effect.text.encode():
            raise Wrong("I6", f"{effect.path} has {len(content)} bytes that nobody approved")
        elif steps.intent is None or steps.intent > count:
            raise Wrong("I5", f"{effect.path} is there, and {effect.run_id} has no durable intent")


def _check(rows: Rows) -> list[bytes]:
    """Return the frontier of the tree at every size. Raises Wrong."""
    streams, types, actors = ({key: prefixed(name) for key, name in names} for names in rows.names)
    log_id = rows.log_id[0][0] if rows.log_id else NO_ID
    frontier, frontiers = Frontier(), [b""]
    last: dict[int, tuple[int, bytes]] = {}
    for place, row in enumerate(rows.events, 1):
        (
            position,
            stream,
            version,
            kind,
            schema,
            actor,
            at_us,
            event_id,
            cause,
            correlation,
            body_kind,
            body,
            salt,
            leaf,
        ) = row
        before, previous = last.get(stream, (0, NO_HASH))
        if (position, version) != (place, before + 1):
            raise Wrong("I2", f"behind position {place - 1} comes {position}, behind version {before} {version}")
        texts = streams[stream] + types[kind] + actors[actor] + prefixed(correlation or "")
        ids = (event_id, cause or NO_ID)
        if body_kind == BODY_PLAIN:
            right = seal(log_id, position, version, at_us, schema, *ids, salt, body.encode(), previous, texts)
        else:
            right = _sealed_leaf(row, log_id, previous, rows.names)
        if leaf != right:
            raise Wrong("I2", f"the leaf of position {position} is not that of its event")
        last[stream] = (version, leaf)
        frontier.extend([leaf])
        frontiers.append(frontier.to_bytes())
    if rows.tree != [(len(rows.events), frontiers[-1])]:
        raise Wrong("I2", "the tree is not that of the leaves")
    return frontiers


def _sealed_leaf(row: tuple[Any, ...], log_id: bytes, previous: bytes, names: Sequence[list[tuple[int, str]]]) -> bytes:
    """Return the leaf of an event with an encrypted body."""
    position, stream, version, kind, schema, actor, at_us, event_id, cause, correlation, body_kind, body, _, _ = row
    streams, types, actors = map(dict, names)
    entry = Entry(
        log_id=log_id,
        position=position,
        version=version,
        recorded_at_us=at_us,
        schema_version=schema,
        event_id=event_id,
        causation_id=cause or NO_ID,
        body_kind=body_kind,
        body_len=len(body),
        content_commit=parse_sealed(body).content_commit,
        stored_hash=stored_hash(body),
        prev_in_stream=previous,
        stream=streams[stream],
        type=types[kind],
        actor=actors[actor],
        correlation_id=correlation or "",
    )
    return leaf_hash(encode(entry))


def _needs(rows: Rows, folder: Path) -> list[tuple[int, str, bytes]]:
    """Return the files that events need: from which position on, the path, and what is in it at the end."""
    streams, types = dict(rows.names[0]), dict(rows.names[1])
    subjects = {path.read_text(): path for path in sorted((folder / KEYS / "subjects").glob("[!.]*"))}
    needs: dict[Path, int] = {}
    for row in rows.events:
        position, stream, _, kind, *_, body_kind, body, _, _ = row
        if body_kind != BODY_PLAIN:
            key_id = parse_sealed(body).key_id.hex()
            needs.setdefault(folder / KEYS / "keys" / key_id, position)
            needs.setdefault(subjects.get(key_id, folder / KEYS / "subjects" / f"of-{key_id}"), position)
        elif digest := artifact_in(streams[stream], types[kind], body.encode()):
            needs.setdefault(folder / f"{artifacts_beside(LOG)}/{digest[:2]}/{digest}", position)
    return [_need(position, path, folder) for path, position in needs.items()]


def _need(position: int, path: Path, folder: Path) -> tuple[int, str, bytes]:
    name, content = str(path.relative_to(folder)), content_at(path)
    if content is None:
        raise Wrong("I1", f"the event at position {position} needs {name}, which is not there")
    return position, name, content


def content_at(path: Path) -> bytes | None:
    """Return what is in a file, None if there is none."""
    return path.read_bytes() if path.is_file() else None


def _told(trace: Trace, rows: Rows, durable: int) -> list[int]:
    """Return what was acknowledged before each operation, and after the last. Raises Wrong."""
    streams = dict(rows.names[0])
    known = {
        row[7].hex(): {"stream": streams[row[1]], "version": row[2], "position": row[0], "leaf": row[13].hex()}
        for row in rows.events
    }
    told, last, rest = [durable], durable, b""
    for operation in trace.operations:
        if isinstance(operation, Told):
            *lines, rest = (rest + operation.data).split(b"\n")
            last = max([last, *(_acknowledged(json.loads(line), known) for line in lines)])
        told.append(last)
    return told


def _acknowledged(fact: dict[str, Any], known: Mapping[str, Mapping[str, Any]]) -> int:
    stored = known.get(fact.pop("id"))
    if stored is None or any(value not in (None, stored[name]) for name, value in fact.items()):
        raise Wrong("I1", f"acknowledged as {fact}, and in the log as {stored}")
    position: int = fact["position"]
    return position


def _steps(rows: Rows, effects: Iterable[Effect]) -> dict[str, _Steps]:
    streams, types = dict(rows.names[0]), dict(rows.names[1])
    found: dict[str, list[tuple[str, int]]] = {}
    for row in rows.events:
        found.setdefault(streams[row[1]], []).append((types[row[3]], row[0]))
    return {effect.run_id: _steps_of(found.get(f"run:{effect.run_id}", []), effect.run_id) for effect in effects}


def _steps_of(events: list[tuple[str, int]], run_id: str) -> _Steps:
    results = [position for kind, position in events if kind in _RESULTS]
    if len(results) > 1:
        raise Wrong("I5", f"{run_id} has {len(results)} results")
    intent = next((position for kind, position in events if kind == "resume_started"), None)
    if results and (intent is None or intent > results[0]):
        raise Wrong("I5", f"{run_id} has a result without an intent in front of it")
    return _Steps(intent, results[0] if results else None)
