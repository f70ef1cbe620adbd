"""When subscribers are told how far the tail is, though it had nothing for them: seldom, and never all at once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from eventlog.stores.subscription.subscriber import Subscriber

__all__ = ["INTERVAL_POSITIONS", "INTERVAL_S", "Progress"]

INTERVAL_S: Final = 0.5
"""While the tail moves, nobody is looked at less often. Who was given something in the last one waits for the next."""
INTERVAL_POSITIONS: Final = 10_000
"""Nor after many more positions than this."""
_AT_ONCE: Final = 64
"""The rest has to wait for the next turn: a thousand wake-ups in one would hold up everybody else."""
_NEXT_TURN_S: Final = 0.005
_TURN_S: Final = 0.05


class Progress:
    """Those who asked for marks, in the order in which they were looked at."""

    def __init__(self) -> None:
        self._looked_at: Final[OrderedDict[Subscriber, tuple[float, int]]] = OrderedDict()
        self._position = 0
        self._settled = 0
        """How many in a row are known to need nothing while the tail stays there."""

    def add(self, subscriber: Subscriber, now_s: float, position: int) -> None:
        """Look after this one from now on, who knows that the tail is at `position`."""
        self._note(position)
        is_settled = self._is_settled()
        self._looked_at[subscriber] = (now_s, position)
        if is_settled:
            self._settled = len(self._looked_at)

    def discard(self, subscriber: Subscriber) -> None:
        """Forget this one."""
        is_settled = self._is_settled()
        if self._looked_at.pop(subscriber, None) is not None:
            self._settled = len(self._looked_at) if is_settled else 0

    def tell(self, now_s: float, position: int) -> None:
        """Wake those whose turn it is and who do not know yet that the tail is at `position`."""
        self._note(position)
        for _ in range(min(_AT_ONCE, len(self._looked_at))):
            subscriber, (then_s, seen) = next(iter(self._looked_at.items()))
            if now_s - then_s < INTERVAL_S and position - seen < INTERVAL_POSITIONS:
                return
            self._looked_at[subscriber] = (now_s, position)
            self._looked_at.move_to_end(subscriber)
            if seen < subscriber.told < position:
                self._settled = 0
                continue
            self._settled += 1
            if subscriber.told < position:
                subscriber.is_due = True
                subscriber.wake()

    def until_next_s(self, now_s: float) -> float | None:
        """Return in how many seconds somebody may have to be told, if the tail stays where it is; None: nobody has.

        Those whose turns come one after the other have it together.
        """
        if self._is_settled():
            return None
        then_s, _ = next(iter(self._looked_at.values()))
        left_s = then_s + INTERVAL_S - now_s
        return max(left_s, _TURN_S) if left_s > 0 else _NEXT_TURN_S

    def _note(self, position: int) -> None:
        if position != self._position:
            self._position, self._settled = position, 0

    def _is_settled(self) -> bool:
        return self._settled >= len(self._looked_at)
