"""How often a step is tried, and how long it waits in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from eventlog.errors import InvalidInput

__all__ = ["ONCE", "Retry"]

_MAX_ATTEMPTS: Final = 1_000_000
_MAX_DELAY_S: Final = 366 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Try a step up to `attempts` times, waiting `first_delay_s` seconds, then `factor` times as long each time.

    No wait is longer than `max_delay_s`. Attempts are counted in the log, so that a crash neither loses nor adds one,
    and a wait goes on in another process. `only` are the exceptions after which another attempt makes sense, and
    `never` those after which none does. Raises InvalidInput(`invalid_argument`).
    """

    attempts: int = 3
    first_delay_s: float = 1.0
    factor: float = 2.0
    max_delay_s: float = 60.0
    only: tuple[type[Exception], ...] = (Exception,)
    never: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= _MAX_ATTEMPTS:
            raise InvalidInput("invalid_argument", f"`attempts` is an int from 1, not {self.attempts!r:.80}")
        for name in ("first_delay_s", "max_delay_s"):
            value = getattr(self, name)
            if not _is_number(value) or not 0 <= value <= _MAX_DELAY_S:
                raise InvalidInput("invalid_argument", f"`{name}` is a number of seconds, not {value!r:.80}")
        if self.first_delay_s > self.max_delay_s:
            message = f"`first_delay_s` is {self.first_delay_s}, and `max_delay_s` only {self.max_delay_s}"
            raise InvalidInput("invalid_argument", message)
        for name in ("only", "never"):
            if not _are_exceptions(getattr(self, name)):
                message = f"`{name}` is a tuple of classes of exceptions, not {getattr(self, name)!r:.80}"
                raise InvalidInput("invalid_argument", message)
        if not _is_number(self.factor) or not 1 <= self.factor <= 1000:
            raise InvalidInput("invalid_argument", f"`factor` is a number from 1 to 1000, not {self.factor!r:.80}")

    def delay_s(self, attempt: int) -> float:
        """Return how many seconds pass between attempt number `attempt` and the next."""
        try:
            return min(self.first_delay_s * self.factor ** (attempt - 1), self.max_delay_s)
        except OverflowError:
            return self.max_delay_s

    def allows(self, error: BaseException, attempt: int) -> bool:
        """Say whether attempt number `attempt`, which raised `error`, is followed by another.

        A cancellation of something that the step waited for counts as any Exception does.
        """
        is_named = isinstance(error, self.only) or (not isinstance(error, Exception) and Exception in self.only)
        return attempt < self.attempts and is_named and not isinstance(error, self.never)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_exceptions(value: object) -> bool:
    kinds = value if isinstance(value, tuple) else (value,)  # one class alone is taken too, as by `except`
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


ONCE: Final = Retry(attempts=1)
