"""What is said of views that cannot be brought up, because the log cannot be written here."""

from __future__ import annotations

from eventlog.cli.options import Options
from eventlog.cli.output import note
from eventlog.cli.wiring import Opened
from eventlog.errors import StoreUnavailable

__all__ = ["require_views"]


async def require_views(options: Options, opened: Opened, *names: str) -> bool:
    """Say how far views are behind that nobody can bring up here, and return whether they are at the end of the log.

    A log that can be written has them there before they are read. Raises StoreUnavailable(`store_readonly`) if one of
    them is not there at all, in the revision that is known here.
    """
    health = await opened.log.health()
    if not health.is_read_only:
        return True
    behind = [health.views_behind.get(f"{name}/{opened.views[name].revision}") for name in names]
    for name, count in zip(names, behind, strict=True):
        if count is None:
            why = f"the log has no view of {name} yet, and cannot be written to make one"
            raise StoreUnavailable("store_readonly", why, view=name)
    late = [name for name, count in zip(names, behind, strict=True) if count]
    if late:
        most = max(count or 0 for count in behind)
        note(options, f"{_spelled(late, most)} events behind the log, which cannot be written here")
    return not late


def _spelled(names: list[str], most: int) -> str:
    if len(names) == 1:
        return f"the view of {names[0]} is {most}"
    return f"the views of {', '.join(names[:-1])} and {names[-1]} are up to {most}"
