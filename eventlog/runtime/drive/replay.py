"""Whether the code has asked for all that the log holds; and what is said of code that asks for something else.

What the log holds was asked for with the knowledge that the log has, so code that asks the same has it all at hand;
code that does not come to it asks for something else.
"""

from __future__ import annotations

import asyncio
from typing import Final

from eventlog.errors import Refused
from eventlog.run import Run
from eventlog.runtime.drive.askers import Askers
from eventlog.runtime.drive.branches import Keys
from eventlog.runtime.drive.suspension import Suspended, Suspension
from eventlog.runtime.session import Session

__all__ = ["Replay"]

_REPLAY_TICKS: Final = 100
_REPLAY_NAPS: Final = 20
_NAP_S: Final = 0.01


class Replay:
    """What the log holds of a run and its code has not asked for yet in this drive."""

    def __init__(
        self, session: Session, keys: Keys, askers: Askers, suspension: Suspension, *, patience_s: float
    ) -> None:
        self._session: Final = session
        self._keys: Final = keys
        self._askers: Final = askers
        self._suspension: Final = suspension
        self._patience_s: Final = patience_s
        self._unasked: Final = session.progress.known_keys()

    @property
    def is_over(self) -> bool:
        """Whether everything that the log holds has been asked for."""
        return not self._unasked

    def note(self, key: str) -> None:
        """Note that the code asks for this."""
        self._unasked.discard(key)

    async def end(self) -> None:
        """Wait until everything that the log holds has been asked for; stop the run if that does not come.

        It does not come where all of the code stands and waits for what it has asked. Where the code waits for
        something of its own it may still come to it, as long as this program has patience.
        """
        turns, patience = 0, max(_REPLAY_NAPS, round(self._patience_s / _NAP_S))
        while self._unasked and not self._suspension.is_on:
            if turns < _REPLAY_TICKS:
                await asyncio.sleep(0)
            elif turns < _REPLAY_TICKS + (_REPLAY_NAPS if self._askers.are_all_asking() else patience):
                await asyncio.sleep(_NAP_S)
            else:
                new = self._keys.used() - self._session.progress.known_keys()
                self._suspension.halt(self.left_out(", ".join(sorted(new))))
            turns += 1

    def require_kind(self, key: str, *kinds: str) -> None:
        """Stop the run if the log has something of none of these `kinds` under this key; the first is asked for."""
        known = self._session.progress.kind_of(key)
        if known is not None and known not in kinds:
            raise self.diverged(f"the {kinds[0]} {key!r}", f"a {known} of that name")

    def diverged(self, asked: str, recorded: str) -> Suspended:
        """Stop the run for good here: `asked` is what the workflow asks for, `recorded` what the log has there."""
        return self._suspension.halt(_divergence(self._session.run, asked, recorded))

    def left_out(self, asked: str) -> Refused:
        """Return what refuses code that asks for `asked` instead of what the log holds."""
        return _divergence(self._session.run, asked, ", ".join(sorted(self._unasked)))


def _divergence(run: Run, asked: str, recorded: str) -> Refused:
    message = f"run {run.run_id!r} is replayed, and its workflow asks for {asked}, where its log holds {recorded}"
    return Refused(
        "nondeterministic_replay",
        message,
        run_id=run.run_id,
        asked=asked,
        recorded=recorded,
        detail=f"asked: {asked}; recorded: {recorded}",
    )
