"""Children of a warm process: forked before any log is open, ended by a crash or with something to tell."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, NoReturn

__all__ = ["BROKEN_STATUS", "Ended", "Work", "here", "in_child", "leave"]

Work = Callable[[], Coroutine[Any, Any, Any]]

BROKEN_STATUS: Final = 70
"""The exit status of a child whose work raised: neither a crash that was asked for nor an end in order."""

_PATIENCE_S: Final = 60


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its exit status, negative for a signal, and what its work returned if that came to its end."""

    status: int
    said: Any = None


def in_child(work: Work) -> Ended:
    """Run `work` in a forked process and wait for its end. What it returns must be JSON.

    This process may have neither a log open nor a thread running. A child that does not end is killed by SIGALRM.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        leave(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Ended(status, json.loads(said) if status == 0 else None)


def here(work: Work) -> Ended:
    """Run `work` in this process, for what no crash is to end: it costs no fork."""

    async def bounded() -> Any:
        async with asyncio.timeout(_PATIENCE_S):
            return await work()

    try:
        return Ended(0, asyncio.run(bounded()))
    except TimeoutError:
        return Ended(-signal.SIGALRM)
    except Exception:
        traceback.print_exc()
        return Ended(BROKEN_STATUS)


def leave(work: Work, writing: int | None = None) -> NoReturn:
    """Be a child: run `work`, tell what it returned through the descriptor `writing`, and end without clean-up."""
    status = BROKEN_STATUS
    try:
        signal.alarm(_PATIENCE_S)
        said = asyncio.run(work())
        if writing is not None:
            _write_all(writing, json.dumps(said).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
