"""The actions that a program can perform, by name; what is no action is refused before any run meets it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Final

from eventlog.errors import InvalidInput
from eventlog.plain import check_id
from eventlog.runtime.attempts import AnyAction
from eventlog.runtime.effects import Promise, compensation_of, key_lifetime_s_of, request_life_s_of

__all__ = ["actions_by_name"]

_MAX_LIFETIME_S: Final = 100 * 365 * 24 * 3600


def actions_by_name(actions: Iterable[AnyAction]) -> dict[str, AnyAction]:
    """Return the actions by name. Raises InvalidInput(`invalid_argument`, `invalid_id`)."""
    by_name: dict[str, AnyAction] = {}
    for action in actions:
        missing = [name for name in ("name", "promise", "check") if not hasattr(action, name)]
        if missing:
            what = f"{action!r:.80} is no action: it has no `{missing[0]}`"
            raise InvalidInput("invalid_argument", f"{what}. `@eventlog.action(…)` makes one of an async function")
        check_id(action.name, "action", max_bytes=128)
        if compensation_of(action) is not None:
            check_id(compensation_of(action), "action that undoes another", max_bytes=128)
        if action.name in by_name:
            raise InvalidInput("invalid_argument", f"two actions are called {action.name!r}")
        try:
            Promise(action.promise)
        except ValueError:
            known = ", ".join(Promise)
            message = f"the action {action.name!r} promises {action.promise!r}; a promise is one of {known}"
            raise InvalidInput("invalid_argument", message) from None
        _check_members(action)
        by_name[action.name] = action
    return by_name


def _check_members(action: AnyAction) -> None:
    """Raise InvalidInput(`invalid_argument`) for an action that lacks what its promise takes."""
    promise = Promise(action.promise)
    member = "write" if promise is Promise.TRANSACTIONAL else "execute"
    if not callable(getattr(action, member, None)):
        raise InvalidInput("invalid_argument", f"the action {action.name!r} is {promise} and has no `{member}`")
    if inspect.iscoroutinefunction(action.check) or (
        member == "write" and inspect.iscoroutinefunction(getattr(action, member))
    ):
        message = f"`check` and `write` of the action {action.name!r} wait for nothing: they are no async functions"
        raise InvalidInput("invalid_argument", message)
    lifetime_s = key_lifetime_s_of(action)
    if promise is Promise.KEYED and not (isinstance(lifetime_s, int | float) and 0 < lifetime_s <= _MAX_LIFETIME_S):
        raise InvalidInput(
            "invalid_argument",
            f"the action {action.name!r} is keyed, so its `key_lifetime_s` is a number of seconds, not {lifetime_s!r}",
        )
    life_s: object = request_life_s_of(action)
    if not (isinstance(life_s, int | float) and 0 <= life_s <= _MAX_LIFETIME_S):
        raise InvalidInput(
            "invalid_argument", f"of {action.name!r} its `request_life_s` is a number of seconds, not {life_s!r}"
        )
