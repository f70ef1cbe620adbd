"""The state of a workflow run as one text, so that its events need not be folded again from the first. Pure.

A snapshot is a convenience and no truth. It is used only if its SHA-256 is the one that a `checkpoint_saved` in the log
commits to; it is the state in front of that event, and the events from there on are folded as ever. What is still to be
acted on, a proposal and the decisions on it, is compared with the events that say so. On any doubt it is thrown away.

    snapshot    the JSON text of [shape, run, progress], spelled by msgspec: the same bytes for the same events. What a
                step or a child that is committed has returned, if that is long, is left to its event: a snapshot is
                written over and over, and would be as long as all of them together
    shape       32 hex digits: how a fold of this program spells a state, and what it means (`_REVISION`). A state of
                another shape is thrown away like a wrong one, never brought up to date: the events are there
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from typing import Any, Final, TypeVar

import msgspec
import msgspec.inspect
from msgspec.structs import astuple, replace

from eventlog.errors import InvalidInput
from eventlog.events import ApprovalRecorded, CheckpointSaved, ProposalRecorded, RunEvent, Status
from eventlog.progress import Child, Progress, Step, Stored
from eventlog.run import Run, Vote

__all__ = ["encode_snapshot", "evidence_of", "has_own_shape", "restore", "shape_of", "snapshot_hash"]

S = TypeVar("S", Step, Child)

_LONG_BYTES: Final = 256

_TO_BE_ACTED_ON: Final = frozenset({Status.WAITING_FOR_USER, Status.APPROVED, Status.OUTCOME_UNKNOWN})


_REVISION: Final = 1
"""Raise it when the same events add up to something else, in Structs that stay as they are."""


class _Snapshot(msgspec.Struct, array_like=True):
    """A run whose progress stands beside it, so that decoding knows the type of each."""

    shape: str
    run: Run
    progress: Progress


class _Shape(msgspec.Struct, array_like=True):
    """What a snapshot of any shape begins with."""

    shape: str


_decode_shape: Final = msgspec.json.Decoder(_Shape).decode
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Snapshot).decode


def encode_snapshot(run: Run) -> bytes:
    """Return the state of a workflow run as JSON text."""
    progress: Progress | None = run.progress
    assert progress is not None, "a snapshot is of a workflow run"
    return _encode(_Snapshot(_own_shape(), replace(run, progress=None), _abridged(progress)))


def has_own_shape(state: bytes) -> bool:
    """Say whether a snapshot is of the shape that this program writes. Raises InvalidInput (`invalid_event`)."""
    try:
        return _decode_shape(state).shape == _own_shape()
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput("invalid_event", f"the stored bytes are no snapshot: {error}") from error


@cache
def _own_shape() -> str:
    return sha256(f"{_REVISION}{shape_of(_Snapshot)}".encode()).hexdigest()[:32]


def shape_of(cls: type[msgspec.Struct]) -> str:
    """Return a text that names each field of a Struct, and of those in it: its spelling, type and default, in order."""
    seen: set[type] = set()
    return _spelled(msgspec.inspect.type_info(cls), seen)


def _spelled(of: Any, seen: set[type]) -> str:
    match of:
        case msgspec.inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return f"{cls.__qualname__}"
            seen.add(cls)
            spelled = "".join(f"{each.encode_name}{_default(each)}:{_spelled(each.type, seen)}," for each in fields)
            return f"{cls.__qualname__}{of.tag}{of.array_like}({spelled})"
        case msgspec.inspect.EnumType(cls=cls):
            return f"{cls.__qualname__}{[member.value for member in cls]}"
        case msgspec.Struct():
            return f"{type(of).__name__}({''.join(_spelled(value, seen) + ',' for value in astuple(of))})"
        case tuple() | list():
            return f"[{''.join(_spelled(each, seen) + ',' for each in of)}]"
        case _:
            return repr(of)


def _default(field: msgspec.inspect.Field) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return f"={field.default_factory.__qualname__}()"
    return "" if field.default is msgspec.NODEFAULT else f"={_encode(field.default).decode()}"


def _abridged(progress: Progress) -> Progress:
    """Return the progress without the long values of what is committed."""
    steps = {key: _without_value(key, step, progress) for key, step in progress.steps.items()}
    children = {key: _without_value(key, child, progress) for key, child in progress.children.items()}
    return replace(progress, steps=steps, children=children)


def _without_value(key: str, of: S, progress: Progress) -> S:
    if key not in progress.committed or not _is_long(of.value):
        return of
    return replace(of, value=Stored(version=of.value.version))


def _is_long(value: Stored) -> bool:
    return len(bytes(value.json)) > _LONG_BYTES


def snapshot_hash(state: bytes) -> str:
    """Return the SHA-256 of a snapshot, as a checkpoint commits to it: 64 hex digits."""
    return sha256(state).hexdigest()


def restore(run_id: str, version: int, state: bytes, event: Any) -> Run | None:
    """Return the run in front of `version`, if `event`, which stands there, commits to this state; else None.

    None as well for a state of another shape: one that another version of this program has written.
    Raises InvalidInput (`invalid_event`) for bytes that are no snapshot.
    """
    if not isinstance(event, CheckpointSaved) or event.snapshot_hash != snapshot_hash(state):
        return None
    if not has_own_shape(state):
        return None
    try:
        saved = _decode(state)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise InvalidInput("invalid_event", f"the stored bytes are no snapshot: {error}") from error
    if saved.run.run_id != run_id or saved.run.version != version - 1:
        return None
    return replace(saved.run, progress=saved.progress)


def evidence_of(run: Run) -> Iterator[tuple[int, Callable[[RunEvent], bool]]]:
    """Give the versions at which the log has to say what people were asked and decided, and what tells that it does.

    Of requests that are still to be acted on; of others nothing runs any more.
    """
    progress: Progress = run.progress
    for key, versions in progress.evidence.items():
        request = progress.requests[key]
        if request.status not in _TO_BE_ACTED_ON:
            continue
        yield versions[0], lambda event, request=request: _asks(event, request)  # type: ignore[misc]
        for version, vote in zip(versions[1:], request.votes, strict=True):
            yield version, lambda event, vote=vote, request=request: _decides(event, vote, request)  # type: ignore[misc]


def _asks(event: RunEvent, request: Run) -> bool:
    return (
        isinstance(event, ProposalRecorded)
        and request.proposal is not None
        and bytes(event.proposal) == request.proposal.canonical
        and (event.step, event.request_id, event.proposal_hash)
        == (request.step, request.request_id, request.proposal_hash)
    )


def _decides(event: RunEvent, vote: Vote, request: Run) -> bool:
    return (
        isinstance(event, ApprovalRecorded)
        and (event.step, event.request_id, event.approval_hash)
        == (request.step, request.request_id, request.proposal_hash)
        and (event.decision, event.level, event.envelope is not None) == (vote.decision, vote.level, vote.is_signed)
    )
