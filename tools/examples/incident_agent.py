"""An agent that can be killed at any moment: a model and its tools in a loop, on a log that any process goes on from.

    python tools/examples/incident_agent.py demo             plays all of it in real processes, two of which are killed
    python tools/examples/incident_agent.py start LOG        begins, and pauses when a person is wanted
    python tools/examples/incident_agent.py reject LOG WHY   a person says no to what is asked; or approve LOG
    python tools/examples/incident_agent.py resume LOG       goes on
    python tools/examples/incident_agent.py show LOG         tells what has happened so far

With `--crash-after N` a process is killed when it is about to make one more append than N: something is done then, and
not recorded. The model is a script, so no network and no key are needed; a real one goes into `ask_model`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # this is a program: it runs from a clone

import msgspec

import eventlog
from eventlog import RunContext, Runner, WriteFile

RUN: Final = "incident-7"


class Turn(msgspec.Struct):
    """What the model says: the tools that it wants to use, or the file that it wants to write, or that it is done."""

    says: str
    tools: list[str] = []
    writes: str | None = None


async def ask_model(conversation: list[str]) -> Turn:
    last = conversation[-1]
    if len(conversation) == 1:
        return Turn("I look at the logs and the runbook.", tools=["search_logs", "read_runbook"])
    if last.startswith("person:"):
        return Turn("Then a smaller pool.", writes="max_connections = 150\n")
    if last.startswith("written:"):
        return Turn("The pool has 150 connections, and requests are answered again.")
    return Turn("The pool is too small. I raise it.", writes="max_connections = 10000\n")


async def use_tool(name: str) -> str:
    logs, runbook = "1200 requests timed out waiting for a connection", "the pool's size is in pool.conf"
    return {"search_logs": logs, "read_runbook": runbook}[name]


@eventlog.workflow
async def handle_incident(run: RunContext, incident: str) -> str:
    """Let the model look and propose until it is done. A person decides on every file that it wants to write."""
    conversation = [incident]
    while True:
        turn = await run.step("model", ask_model, conversation)
        conversation.append(f"model: {turn.says}")
        if turn.tools:
            found = await run.gather(*(run.step(name, use_tool, name) for name in turn.tools))
            conversation += [f"tool: {text}" for text in found]
        elif turn.writes is not None:
            try:
                await run.act("write_file", {"content": turn.writes}, output="pool.conf")
                conversation.append(f"written: {turn.writes}")
            except eventlog.ApprovalRejected as no:
                conversation.append(f"person: no, {no.reason}")
        else:
            return turn.says


class CrashingLog:
    """A log whose process is killed instead of making one more append than `left`."""

    def __init__(self, log: Any, left: int) -> None:
        self._log, self._left = log, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_reserved(self, *args: Any, **options: Any) -> Any:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return await self._log.append_reserved(*args, **options)


async def carry_out(command: str, log: Path, reason: str | None, crash_after: int) -> str:
    async with eventlog.open(log) as opened:
        crashing, folder = CrashingLog(opened, crash_after), str(log.parent.resolve())
        runner = Runner(crashing, workflows=[handle_incident], actions=[WriteFile()], folder=folder)
        if command == "start":
            return (await runner.start(handle_incident, RUN, "Checkout is slow.")).status
        if command == "resume":
            return (await runner.resume(RUN)).status
        if command == "show":
            return "\n".join(filter(None, [told(event.data) for event in await runner.trace(RUN)]))
        requests = (await runner.state(RUN)).progress.requests.values()
        asked = next(request for request in requests if request.status == "WAITING_FOR_USER")
        decide = runner.approve if command == "approve" else runner.reject
        return (await decide(RUN, asked.proposal_hash, request=asked.request_id, reason=reason, actor="ann")).status


def told(event: Any) -> str | None:
    """Return what an event says to people, if it does."""
    match type(event).__name__:
        case "RunClaimed":
            return "-- a process takes the run"
        case "StepCompleted":
            output = msgspec.json.decode(event.output)
            return f"{event.name:>12}  {output['says'] if event.name.startswith('model') else output}"
        case "ProposalRecorded":
            return f"{'asks':>12}  {bytes(event.proposal).decode()}"
        case "ApprovalRecorded":
            return f"{'a person':>12}  says {event.decision}" + (f": {event.reason}" if event.reason else "")
        case "ActionExecuted" | "ActionRecovered" as name:
            return f"{'pool.conf':>12}  " + ("is written" if name == "ActionExecuted" else "was written already")
    return None


def demo() -> str:
    with tempfile.TemporaryDirectory() as folder:
        log = str(Path(folder) / "agent.db")
        killed = [["start", log, "--crash-after", "3"], ["resume", log, "--crash-after", "2"]]
        no, yes, on = ["reject", log, "the database allows 200"], ["approve", log], ["resume", log]
        for words in (killed[0], on, no, on, yes, killed[1], on, ["show", log]):
            done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
            if done.returncode != (-signal.SIGKILL if words in killed else 0):
                sys.exit(f"{words} ended with {done.returncode}\n{done.stderr}")
            print(f"$ {' '.join(words).replace(log, 'LOG')}\n{done.stdout.strip() or 'killed'}", flush=True)
        return f"$ cat pool.conf\n{(Path(folder) / 'pool.conf').read_text().strip()}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="An agent that can be killed at any moment.")
    parser.add_argument("command", choices=["demo", "start", "resume", "approve", "reject", "show"])
    parser.add_argument("log", nargs="?", type=Path, default=Path("agent.db"))
    parser.add_argument("reason", nargs="?")
    parser.add_argument("--crash-after", type=int, default=-1, metavar="N")
    given = parser.parse_args()
    print(demo() if given.command == "demo" else asyncio.run(carry_out(**vars(given))))
