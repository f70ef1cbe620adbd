"""Asks a signer, whose calls block, from an event loop: one call at a time, and never longer than can be waited for.

Each call has a thread of its own, a daemon. A signer that does not answer keeps neither the loop nor the end of the
program waiting, and while it has not answered nothing else is asked of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from eventlog.errors import LogCorrupt, StoreUnavailable
from eventlog.heads import HeadRequest, HeadSigner, SignedHead, StaleHead
from eventlog.signing.notes import VerifierKey

__all__ = ["SignerCalls"]

T = TypeVar("T")

_TIMEOUT_S: Final = 15.0


class SignerCalls:
    """The calls of one signer.

    What it raises that a signer is not meant to becomes `signer_unavailable`, also an error of the engine that speaks
    of something else: whoever asks for a head would take it for an answer about what he does himself.
    """

    def __init__(self, signer: HeadSigner) -> None:
        self._signer: Final = signer
        self._running: asyncio.Future[Any] | None = None

    async def last(self) -> SignedHead | None:
        """As `HeadSigner.last`."""
        return await self._ask(self._signer.last)

    async def sign(self, request: HeadRequest) -> SignedHead:
        """As `HeadSigner.sign`. Raises StoreUnavailable(`signer_unavailable`) for the signature of something else."""
        signed = await self._ask(self._signer.sign, request)
        if (signed.log_id, signed.head) != (request.log_id, request.head):
            raise _unavailable(f"it was asked to sign size {request.head.size}, and signed size {signed.head.size}")
        return signed

    async def keys(self, log_id: bytes) -> Sequence[VerifierKey]:
        """Return the keys that it says it signs the heads of this log with; none if it names none."""
        names = getattr(self._signer, "verifier_keys", None)
        return () if names is None else await self._ask(names, log_id)

    async def begin(self, log_id: bytes) -> None:
        """As `HeadSigner.begin`."""
        await self._ask(self._signer.begin, log_id)

    async def _ask(self, function: Callable[..., T], *args: Any) -> T:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while self._running is not None and not self._running.done():
                    await asyncio.wait({self._running})
                self._running = running = _start(function, *args)
                return await asyncio.shield(running)
        except (StaleHead, StoreUnavailable, LogCorrupt):
            raise
        except TimeoutError:
            raise _unavailable(f"it has not answered for {_TIMEOUT_S:g} s") from None
        except Exception as error:
            raise _unavailable(f"it failed: {_said(error)}") from error


def _start(function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    future.add_done_callback(_look_at)  # whoever asked may have gone

    def call() -> None:
        try:
            outcome: tuple[Any, Exception | None] = (function(*args), None)
        except TimeoutError as error:  # its own, not ours
            outcome = (None, _unavailable(f"it failed: {_said(error)}"))
        except StopIteration as error:  # which a future does not take
            outcome = (None, RuntimeError(f"StopIteration: {error}"))
        except Exception as error:
            outcome = (None, error)
        except BaseException as error:
            outcome = (None, RuntimeError(_said(error)))
        with suppress(RuntimeError):  # the loop was closed meanwhile; nobody is left to be told
            loop.call_soon_threadsafe(_deliver, future, *outcome)

    threading.Thread(target=call, name="eventlog-signer", daemon=True).start()
    return future


def _deliver(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _look_at(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # its text is code of its own
        return f"{type(error).__name__}, whose text cannot be read"


def _unavailable(why: str) -> StoreUnavailable:
    return StoreUnavailable("signer_unavailable", f"the signer of heads cannot be asked: {why}")
