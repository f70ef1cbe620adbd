"""The views whose projections this program knows: those that ship, and the caller's own.

`--projections MODULE:NAME` names a projection (an object or a class), a `SqliteView`, or what gives several of them: a
list, a tuple, or a function without arguments that returns one of all these.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from eventlog.cli.imported import Imported, printing_elsewhere
from eventlog.cli.options import Options
from eventlog.errors import EventLogError
from projections import Projection, SqliteView, built_in_views

__all__ = ["Known", "built_elsewhere", "known_views", "the_view", "unknown_view"]

Known = Mapping[str, SqliteView]
"""The views by name."""

_FORM: Final = "MODULE:NAME"


def known_views(options: Options) -> Known:
    """Return the views by name, those that ship first. Raises Misuse(`projections_unusable`)."""
    shipped = {view.name: view for view in built_in_views()}
    if options.projections is None:
        return shipped
    named = Imported(options.projections, "--projections", _FORM, "projections_unusable")
    with printing_elsewhere():
        own = list(_views_in(named.found(), named, may_call=True))
    if not own:
        raise named.unusable("it gives no projection")
    known = dict(shipped)
    for view in own:
        if view.name in shipped:
            raise named.unusable(f"the name {view.name!r} is that of a view that ships with the engine")
        if view.name in known:
            raise named.unusable(f"two of its projections have the name {view.name!r}")
        known[view.name] = view
    return known


def the_view(known: Known, name: str, others: Collection[str] = ()) -> SqliteView:
    """Return the view of this name. Raises EventLogError(`unknown_view`); `others` are names that only the log has."""
    if name in known:
        return known[name]
    raise unknown_view(name, known, others)


def unknown_view(name: str, known: Collection[str], others: Collection[str]) -> EventLogError:
    """Return the error for a name that this program knows no projection of."""
    if name in others:
        message = f"the log has a view {name!r}, but this program does not know its projection"
    else:
        near = get_close_matches(name, [*known, *others], n=1)
        message = f"there is no view {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
    return EventLogError("unknown_view", message, view=name, known=", ".join(known))


def built_elsewhere(name: str) -> EventLogError:
    """Return the error for a view that another process is building."""
    return EventLogError("view_busy", f"another process is building the view {name!r}", view=name)


def _views_in(found: Any, named: Imported, *, may_call: bool) -> Iterator[SqliteView]:
    if isinstance(found, SqliteView):
        yield found
    elif isinstance(found, Projection):
        yield _made(lambda: SqliteView(found), named)
    elif isinstance(found, list | tuple):
        for each in found:
            yield from _views_in(each, named, may_call=False)
    elif inspect.isclass(found) and issubclass(found, Projection):
        yield _made(lambda: SqliteView(found()), named)
    elif may_call and callable(found):
        yield from _views_in(_made(found, named), named, may_call=False)
    else:
        raise named.unusable(f"it gives a {type(found).__name__}, and no projection")


def _made(make: Any, named: Imported) -> Any:
    try:
        return make()
    except Exception as error:
        raise named.unusable(f"it fails: {type(error).__name__}: {error}") from error
