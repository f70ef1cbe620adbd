"""Workflows run on other event loops than asyncio's own, and inside the loop of a web application."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import eventlog
from eventlog import Call, RunContext, Runner

uvicorn = pytest.importorskip("uvicorn")
applications = pytest.importorskip("starlette.applications")
responses = pytest.importorskip("starlette.responses")
routing = pytest.importorskip("starlette.routing")


async def look_up(name: str) -> str:
    await asyncio.sleep(0)
    return name.upper()


@eventlog.action("greet", promise="opaque")
async def greet(call: Call) -> str:
    return f"hello {call.args['name']}"


@eventlog.workflow
async def greeting(run: RunContext, name: str) -> str:
    found, _ = await run.gather(run.step("look_up", look_up, name), run.step("again", look_up, name))
    await run.sleep(0.001)
    result: str = await run.act("greet", {"name": found}, output="console")
    return result


async def whole_life(path: Path) -> Any:
    async with eventlog.open(path) as log:
        runner = Runner(log, workflows=[greeting], actions=[greet])
        (request,) = (await runner.start(greeting, "run-1", "ada")).requests
        await runner.approve("run-1", request.proposal_hash or "")
        worker = eventlog.Worker(runner)
        await worker.run(until_idle=True)
        assert worker.driven == 1
        return (await runner.resume("run-1")).value


def test_a_run_lives_on_a_uvloop(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        assert type(loop.get_loop()).__module__.startswith("uvloop")
        assert loop.run(whole_life(tmp_path / "log.db")) == "hello ADA"


def test_a_run_lives_on_a_loop_in_debug_mode(tmp_path: Path) -> None:
    assert asyncio.run(whole_life(tmp_path / "log.db"), debug=True) == "hello ADA"


def application(path: Path) -> Any:
    """A web application that starts runs, and lets people decide on them; its log is open as long as it serves."""

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with eventlog.open(path) as log:
            app.state.runner = Runner(log, workflows=[greeting], actions=[greet])
            yield

    async def start(request: Any) -> Any:
        outcome = await request.app.state.runner.start(greeting, request.path_params["run"], "ada")
        return responses.JSONResponse(
            {"status": outcome.status, "hashes": [each.proposal_hash for each in outcome.requests]}
        )

    async def approve(request: Any) -> Any:
        runner = request.app.state.runner
        run_id = request.path_params["run"]
        await runner.approve(run_id, (await request.json())["hash"], actor="web:7")
        outcome = await runner.resume(run_id)
        return responses.JSONResponse({"status": outcome.status, "value": outcome.value})

    routes = [
        routing.Route("/runs/{run}", start, methods=["POST"]),
        routing.Route("/runs/{run}/approve", approve, methods=["POST"]),
    ]
    return applications.Starlette(routes=routes, lifespan=lifespan)


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on", ws="none"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


async def test_twenty_requests_at_once_each_have_a_run_in_the_loop_of_a_web_application(tmp_path: Path) -> None:
    server = serving(application(tmp_path / "log.db"))
    async with server as url, httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one(number: int) -> tuple[str, Any]:
            started = (await client.post(f"/runs/run-{number}")).json()
            assert started["status"] == "WAITING_FOR_USER"
            (proposal_hash,) = started["hashes"]
            decided = (await client.post(f"/runs/run-{number}/approve", json={"hash": proposal_hash})).json()
            return decided["status"], decided["value"]

        assert await asyncio.gather(*map(one, range(20))) == [("COMPLETED", "hello ADA")] * 20
