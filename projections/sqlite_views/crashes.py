"""What crashes have left open: attempts of the view `effects` whose time has passed without a result.

Nobody has said what came of them, so they may have happened or not. Whoever resumes the run finds out.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from projections.projection import Row
from projections.sqlite_views.inbox import REQUEST_COLUMNS, REQUEST_NAMES
from projections.sqlite_views.limits import at_most

__all__ = ["crashed_effects", "crashes_count"]

_OF_EFFECT: Final = ("effect", "at_work_on", "undoes", "attempts", "began_at_us", "until_us")
_NAMES: Final = (*REQUEST_NAMES, *_OF_EFFECT)

# The undoing of an effect belongs to the request of what it undoes.
_CRASHED: Final = f"""
SELECT {REQUEST_COLUMNS}, e.effect, e.action, e.undoes, e.attempts, e.began_at_us, e.until_us
FROM effects e
LEFT JOIN effects u ON u.run_id = e.run_id AND u.step = e.step AND u.op_key = e.undoes
JOIN approvals a ON a.run_id = e.run_id AND a.step = e.step AND a.request_id = coalesce(u.effect, e.effect)
LEFT JOIN runs r ON r.run_id = e.run_id
WHERE e.status = 'open' AND e.until_us <= ? AND (+e.run_id, +e.effect) > (?, ?)
ORDER BY +e.run_id, +e.effect LIMIT ?"""

_COUNT: Final = "SELECT count(*) FROM effects WHERE status = 'open' AND until_us <= ?"


def crashed_effects(
    connection: sqlite3.Connection, at_us: int, after: tuple[str, str] = ("", ""), limit: int = 1000
) -> list[Row]:
    """Return up to `limit` effects that are open at `at_us` and nobody's any more, by run and effect.

    A row has the columns of `inbox` for the request that the effect belongs to, and from `effects` `effect`, `undoes`,
    `attempts`, `began_at_us`, `until_us` and, as `at_work_on`, the name of the action. The views `runs`, `approvals`
    and `effects` have to be there. A limit of -1 is none.
    """
    found = connection.execute(_CRASHED, (at_us, *after, at_most(limit)))
    return [dict(zip(_NAMES, values, strict=True)) for values in found]


def crashes_count(connection: sqlite3.Connection, at_us: int) -> int:
    """Return how many effects are open at `at_us` and nobody's any more."""
    count: int = connection.execute(_COUNT, (at_us,)).fetchone()[0]
    return count
