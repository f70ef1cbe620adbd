"""The arguments of `eventlog.open`, looked at before anything is opened: each refusal names one, and what to give.

Callers without a type checker give a path where an object is asked for, and would be told of it much later, by
whatever meets it first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from eventlog.errors import InvalidInput
from eventlog.heads import HeadSigner
from eventlog.scanning import Scanner

if TYPE_CHECKING:
    from eventlog.stores.sqlite import InlineView
    from eventlog.stores.subject_keys import SubjectKeys

__all__ = ["check_in_memory", "check_scanner", "check_signing", "check_subject_keys", "check_views"]

_MAX_REASON: Final = 1000
_A_DAY_S: Final = 86_400
_VIEW: Final = ("name", "revision", "shape", "selection", "create")
_SIGNER: Final = ("last", "sign", "begin")


def check_in_memory(given: Mapping[str, bool]) -> None:
    """Raise InvalidInput(`invalid_argument`) for the first argument that was given and that a log in memory has not."""
    for name, is_given in given.items():
        if is_given:
            message = "a log in memory is new, can be written, reaches no disk, and has nothing to be signed"
            raise _refused(name, f"{message}; leave `{name}` away")


def check_signing(
    signer: HeadSigner | None, durability: str, times: tuple[int, float], restored: str | None, is_read_only: bool
) -> None:
    """Raise InvalidInput(`invalid_argument`) unless heads can be signed so, and a restore be declared so."""
    if signer is not None and (isinstance(signer, type) or not _has_calls(signer)):
        raise _refused("signer", _no_signer(signer))
    if signer is not None and durability != "full":
        raise _refused("durability", "what is signed has to be durable: a signer takes durability='full'")
    every_events, every_s = times
    if type(every_events) is not int or every_events < 1:
        raise _refused("head_every_events", f"heads are signed every 1 or more events, not {every_events!r:.40}")
    if type(every_s) not in (int, float) or not isfinite(every_s) or not 0 < every_s < _A_DAY_S:
        message = f"heads are signed within a day: seconds from above 0 to below {_A_DAY_S}, not {every_s!r:.40}"
        raise _refused("head_every_s", message)
    if restored is not None:
        _check_restored(restored, is_read_only)


def check_subject_keys(keys: SubjectKeys | None) -> None:
    """Raise InvalidInput(`invalid_argument`) for anything but the keys of subjects."""
    if keys is None:
        return
    from eventlog.stores.subject_keys import SubjectKeys

    if not isinstance(keys, SubjectKeys):
        given = f"{keys!r:.80}" if isinstance(keys, str) else "…"
        message = f"the keys of subjects are `SubjectKeys({given}, wrapping_key=…)`, not a {type(keys).__name__}"
        raise _refused("subject_keys", message)


def check_scanner(scanner: Scanner | None) -> None:
    """Raise InvalidInput(`invalid_argument`) for anything but a scanner."""
    if scanner is not None and not isinstance(scanner, Scanner):
        message = f"a scanner is a `Scanner(…)`, or None for no scanning at all, not a {type(scanner).__name__}"
        raise _refused("scanner", message)


def check_views(given: Any) -> Sequence[InlineView]:
    """Return the views. Raises InvalidInput(`invalid_argument`) for one that is none, and for one given twice."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise _refused("views", f"the views are a list of views, `[SqliteView(…)]`, not a {type(given).__name__}")
    views = tuple(given)
    for view in views:
        if not all(hasattr(view, name) for name in _VIEW):
            message = f"{type(view).__qualname__} is no view in SQLite; wrap a projection: `SqliteView(…)`"
            raise _refused("views", message)
    names = [view.name.lower() for view in views]
    if len(set(names)) < len(names):
        raise _refused("views", f"a view is given twice: {', '.join(names)}")
    return views


def _check_restored(restored: str, is_read_only: bool) -> None:
    if type(restored) is not str:
        what = f"a text that says why an older copy stands here, not a {type(restored).__name__}"
        raise _refused("restored", f"`restored` is {what}")
    if not restored.strip():
        raise _refused("restored", "the reason of a restore is empty: say why an older copy stands here")
    if len(restored) > _MAX_REASON:
        message = f"the reason of a restore has at most {_MAX_REASON} characters, not {len(restored)}"
        raise _refused("restored", message)
    if is_read_only:
        raise _refused("restored", "a restore is declared by a writer; leave `is_read_only` away")


def _no_signer(given: object) -> str:
    local = f"`LocalSigner({given!r:.80})`" if isinstance(given, str) else "`LocalSigner(key_path)`"
    return f"a signer is an object, {local} or `RemoteSigner('unix:…')`, not a {type(given).__name__}"


def _has_calls(signer: Any) -> bool:
    return all(callable(getattr(signer, name, None)) for name in _SIGNER)


def _refused(name: str, message: str) -> InvalidInput:
    return InvalidInput("invalid_argument", message, argument=name)
