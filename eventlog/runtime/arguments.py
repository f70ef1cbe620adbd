"""The arguments of the public calls of the runtime, looked at before anything is read or written.

Callers without a type checker give an id where an object is asked for, or a number for True, and would be told of it
much later, by whatever meets it first. Here each refusal names the argument, what it is to be, and what it is. What a
value of the right type may hold is for whoever uses it to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from eventlog.errors import InvalidInput
from eventlog.events import Envelope
from eventlog.proposal import Proposal
from eventlog.runtime.retries import Retry
from eventlog.signing.statements import Displayed

__all__ = ["check_given", "check_if_given"]


class _Kind(NamedTuple):
    """What an argument is to be, in words and as a test; and the code of the refusal of anything else."""

    what: str
    is_met: Callable[[Any], bool]
    code: str = "invalid_argument"


def check_given(**given: object) -> None:
    """Raise InvalidInput (`invalid_argument`, `invalid_id`) for the first argument that is not what its name asks for.

    Its `path` is the argument, as `$.reason`.
    """
    for name, value in given.items():
        if not _KINDS[name].is_met(value):
            raise _refused(name, value, _KINDS[name].what)


def check_if_given(**given: object) -> None:
    """As `check_given`, for arguments that may be None as well."""
    for name, value in given.items():
        if value is not None and not _KINDS[name].is_met(value):
            raise _refused(name, value, f"{_KINDS[name].what}, or None")


def _refused(name: str, value: object, what: str) -> InvalidInput:
    return InvalidInput(_KINDS[name].code, f"`{name}` is {what}, not this {type(value).__name__}", path=f"$.{name}")


def _one_of(*types: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, types)


def _with(*members: str) -> Callable[[Any], bool]:
    """Say by what it has whether something is meant: a log may be another's, or stand before one."""
    return lambda value: not isinstance(value, type) and all(hasattr(value, member) for member in members)


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


def _is_lasting(value: object) -> bool:
    """Say whether it is several, and can be read again when a decision has to be made again."""
    return isinstance(value, Collection) and not isinstance(value, str | bytes)


def _is_version(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_TEXT: Final = _Kind("a text", _one_of(str))
_ID: Final = _TEXT._replace(code="invalid_id")
_SECONDS: Final = _Kind("a number of seconds", _is_number)
_FLAG: Final = _Kind("True or False", _one_of(bool))

_KINDS: Final[Mapping[str, _Kind]] = {
    "action": _ID,
    "actions": _Kind("a list of actions", _is_several),
    "actor": _ID,
    "approver": _ID,
    "approves": _FLAG,
    "args": _Kind("a dict", _one_of(dict), "unsupported_type"),
    "at_version": _Kind("a version of the run, a whole number from 1 on", _is_version),
    "clock": _Kind("a clock, with `now_us` and `monotonic_s`", _with("now_us", "monotonic_s")),
    "decision": _Kind("a text", _one_of(str), "invalid_decision"),
    "displayed": _Kind("a `Displayed`", _one_of(Displayed)),
    "envelope": _Kind("an `Envelope`, as `sign_approval` makes one", _one_of(Envelope)),
    "evidence": _TEXT,
    "folder": _TEXT,
    "grace_s": _SECONDS,
    "is_authenticated": _FLAG,
    "keeps_tracebacks": _FLAG,
    "key_id": _TEXT,
    "log": _Kind("a log, as `eventlog.open` gives one", _with("place", "read_stream", "append_reserved")),
    "output": _Kind("a text", _one_of(str), "unsupported_type"),
    "policies": _Kind("a mapping of policies by the names of actions", _one_of(Mapping)),
    "proposal": _Kind("a proposal, as `eventlog.propose` makes one", _one_of(Proposal)),
    "proposal_hash": _TEXT,
    "reach": _Kind("a function", callable),
    "reason": _TEXT,
    "request": _TEXT,
    "retry": _Kind("a `Retry`", _one_of(Retry)),
    "roles": _Kind("a list of texts", _is_lasting),
    "runner": _Kind("a `Runner`", _with("log", "workflows", "resume")),
    "subject": _ID,
    "until_idle": _FLAG,
    "valid_for_s": _SECONDS,
    "verdict": _Kind("a text", _one_of(str), "invalid_verdict"),
    "view": _Kind("a view of runs, with `row`", _with("row")),
    "workflows": _Kind("a list of workflows", _is_several),
}
"""What the arguments are to be, by their names: one name is one thing in every call."""
