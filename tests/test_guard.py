"""Who may use a log object: the process and the loop that opened it, from opening to closing."""

from __future__ import annotations

import asyncio
import os

import pytest

from eventlog.errors import Misuse, StoreUnavailable
from eventlog.stores.guard import Guard

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.fixture
async def guard() -> Guard:
    """The guard of an open log."""
    guard = Guard()
    guard.claim()
    guard.open()
    return guard


def refusal_of(guard: Guard) -> str:
    """Return the code with which the guard refuses a call, "" if it does not."""
    try:
        guard.check()
    except (Misuse, StoreUnavailable) as error:
        return error.code
    return ""


async def test_whoever_opened_the_log_may_use_it_until_it_is_closed(guard: Guard) -> None:
    assert (refusal_of(guard), guard.is_open) == ("", True)
    guard.close()
    assert (refusal_of(guard), guard.is_open) == ("engine_closed", False)


async def test_a_log_that_is_being_opened_may_not_be_used_yet_and_is_opened_once() -> None:
    guard = Guard()
    guard.claim()
    assert refusal_of(guard) == "engine_closed"
    with pytest.raises(Misuse) as caught:
        guard.claim()
    assert caught.value.code == "engine_closed"


async def test_another_loop_is_told_that_the_log_is_not_its_own(guard: Guard) -> None:
    async def asks() -> str:
        return refusal_of(guard)

    assert await asyncio.to_thread(asyncio.run, asks()) == "wrong_loop"


async def test_a_forked_child_is_told_that_the_log_is_its_parents(guard: Guard) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, refusal_of(guard).encode())
        os._exit(0)
    try:
        assert os.read(read, 100) == b"fork_detected"
    finally:
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
        os.close(read)
        os.close(write)
    assert refusal_of(guard) == "", "the parent goes on"
