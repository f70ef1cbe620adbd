"""The folded state of a run as plain data, field by field, and what differs between two such states.

All fields of the fold are there, under their own names: texts, numbers and nested objects. Times (fields that end in
`_us`) are ISO 8601 texts under the name without that ending, stored values are what they hold, or `artifact://<sha256>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from math import copysign
from typing import Any, Final

import msgspec

from eventlog.progress import Stored
from eventlog.proposal import Proposal
from eventlog.run import Run
from eventlog.times import time_text

__all__ = ["Change", "Path", "changes", "path_text", "plain_state"]

Path = tuple[str | int, ...]
"""Where a value stands in a state: names and keys of objects, places in lists from 0."""

_MICROSECONDS: Final = "_us"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One value that differs. What was `added` has no `before`, what was `removed` no `after`."""

    path: Path
    kind: str
    before: Any = None
    after: Any = None


def plain_state(run: Run) -> dict[str, Any]:
    """Return all that the events of a run add up to."""
    state: dict[str, Any] = _plain(run)
    return state


def changes(before: Any, after: Any) -> list[Change]:
    """Return what differs between two values of plain data, as deep as it can be told, in the order of the fields."""
    return list(_changes(before, after, ()))


def path_text(path: Path) -> str:
    """Return a path as people write it: `progress.steps["a.b"].attempts`, `votes[0]`."""
    return "".join(map(_step_text, path)).removeprefix(".")


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if step.isidentifier() else f"[{json.dumps(step, ensure_ascii=False)}]"


def _changes(before: Any, after: Any, path: Path) -> Iterator[Change]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in [*before, *(name for name in after if name not in before)]:
            yield from _changes_at(before, after, name, path)
    elif isinstance(before, list) and isinstance(after, list):
        old, new = dict(enumerate(before)), dict(enumerate(after))
        for place in range(max(len(before), len(after))):
            yield from _changes_at(old, new, place, path)
    elif not _is_same(before, after):
        yield Change(path=path, kind="changed", before=before, after=after)


def _changes_at(before: Mapping[Any, Any], after: Mapping[Any, Any], step: str | int, path: Path) -> Iterator[Change]:
    where = (*path, step)
    if step not in after:
        yield Change(path=where, kind="removed", before=before[step])
    elif step not in before:
        yield Change(path=where, kind="added", after=after[step])
    else:
        yield from _changes(before[step], after[step], where)


def _is_same(before: Any, after: Any) -> bool:
    """Say whether two values are the same plain data: 1 is not True, nor 1.0, and 0.0 is not -0.0."""
    if type(before) is not type(after) or before != after:
        return False
    return not isinstance(before, float) or copysign(1, before) == copysign(1, after)


def _plain(value: Any) -> Any:
    match value:
        case Stored(artifact=str(digest)):
            return f"artifact://{digest}"
        case Stored(json=text):
            return _plain(text)
        case Proposal(action=action, args=args, output=output, hash=digest):
            return {"action": action, "args": args, "output": output, "hash": digest}
        case msgspec.Raw():
            return json.loads(bytes(value)) if bytes(value) else None
        case msgspec.Struct():
            return dict(_field(name, getattr(value, name)) for name in value.__struct_fields__)
        case Mapping():
            return {key: _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case Enum():
            return value.value
        case _:
            return value


def _field(name: str, value: Any) -> tuple[str, Any]:
    if name.endswith(_MICROSECONDS) and (value is None or isinstance(value, int)):
        return name.removesuffix(_MICROSECONDS), time_text(value) if value else None
    return name, _plain(value)
