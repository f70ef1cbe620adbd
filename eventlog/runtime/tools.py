"""What a drive works with: the log, the actions and workflows of this program, its clock and its patience."""

from __future__ import annotations

import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import Failure, run_stream
from eventlog.log import RunLog
from eventlog.plain import Limits
from eventlog.progress import Stored
from eventlog.runtime.attempts import AnyAction, described
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.effect_grounds import EffectGrounds
from eventlog.runtime.failpoints import Reach
from eventlog.runtime.policies import Policies
from eventlog.stores.clock import Clock
from eventlog.values import ValueCodec

__all__ = ["INLINE_BYTES", "SEALED_BYTES", "Tools", "failure_of"]

INLINE_BYTES: Final = 64 * 1024
"""What is larger is kept beside the log, by its digest."""

SEALED_BYTES: Final = Limits().body_bytes - 64 * 1024
"""What fits into one event of a run about a subject, beside the event's own fields."""

_MAX_TRACEBACK: Final = 16_000


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What a runner hands to each drive. Times are seconds."""

    log: RunLog
    actions: Mapping[str, AnyAction]
    workflows: Mapping[str, Workflow]
    policies: Policies
    grounds: EffectGrounds
    clock: Clock
    reach: Reach
    folder: Callable[[], str | None]
    lease_s: float
    patience_s: float
    keeps_tracebacks: bool
    drive_child: Callable[[str], Awaitable[None]]
    """Drives another run of the same log as far as it goes; does nothing if it cannot go on."""
    actor: str | None = None

    async def store(self, codec: ValueCodec, value: Any, run_id: str) -> Stored:
        """Return the value as an event of the run holds it; a large one is durable beside the log then.

        Raises InvalidInput with the path to what cannot be stored exactly.
        """
        return await self.keep(self.encoded(codec, value), run_id)

    def encoded(self, codec: ValueCodec, value: Any) -> bytes:
        """Return the JSON text of the value. Raises as `store`."""
        return codec.encode(value, _ARTIFACT_LIMITS)

    def encoded_and_read(self, codec: ValueCodec, value: Any) -> tuple[bytes, Any]:
        """Return the JSON text of the value, and the value as every replay will read it. Raises as `store`."""
        return codec.round_trip(value, _ARTIFACT_LIMITS)

    async def keep(self, json: bytes, run_id: str, *, is_sealed: bool = False) -> Stored:
        """Return the JSON text of a value as an event of the run holds it; a large one is durable beside the log then.

        In a run about a subject it is in the event, however large: beside the log it would lie in clear, and outlive
        the subject's key. `is_sealed` says so of a run that has not begun. There InvalidInput(`payload_too_large`) is
        raised for what is too large for that.
        """
        if len(json) <= INLINE_BYTES:
            return Stored(json=msgspec.Raw(json))
        if is_sealed or await self.log.is_sealed(run_stream(run_id)):
            require_room(json)
            return Stored(json=msgspec.Raw(json))
        return Stored(artifact=await self.log.artifacts.put(json))

    async def require_room(self, json: bytes, run_id: str) -> None:
        """Raise what `keep` raises for a value that is too large, before anything comes of it."""
        if len(json) > INLINE_BYTES and await self.log.is_sealed(run_stream(run_id)):
            require_room(json)

    async def value(self, codec: ValueCodec, stored: Stored) -> Any:
        """Return a stored value. Raises LogCorrupt where the artifact is missing or damaged."""
        return codec.decode(await self.text(stored))

    async def text(self, stored: Stored) -> bytes | msgspec.Raw:
        """Return the JSON text of a stored value, of which there is one."""
        if stored.artifact is not None:
            return await self.log.artifacts.get(stored.artifact)
        return stored.json


def require_room(json: bytes) -> None:
    """Raise InvalidInput(`payload_too_large`) for a value that no event of a run about a subject has room for."""
    if len(json) > SEALED_BYTES:
        message = f"a value of a run about a subject has {len(json)} bytes; {SEALED_BYTES} fit into its event"
        raise InvalidInput("payload_too_large", message)


_ARTIFACT_LIMITS: Final = Limits(body_bytes=1024 * 1024 * 1024)


def failure_of(error: BaseException, code: str, *, keeps_traceback: bool) -> Failure:
    """Return what an event holds of an exception. Its text may be a lie, or raise in turn."""
    text = None
    if keeps_traceback:
        lines = "".join(traceback.format_exception(error))
        text = lines[-_MAX_TRACEBACK:].encode(errors="replace").decode()
    details = None
    if isinstance(error, InvalidInput):
        details = {"code": error.code, "path": error.path}
    return Failure(
        code=code,
        message=described(error, named=False) or _place_of(error),
        details=details,
        type=type(error).__name__,
        traceback=text,
    )


def _place_of(error: BaseException) -> str:
    """Return where an exception without a text of its own was raised, as an `assert` does."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"in {frames[-1].name}, line {frames[-1].lineno} of {Path(frames[-1].filename).name}" if frames else ""
