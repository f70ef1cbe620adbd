"""Events and runs for the tests of what people read about them: the whole catalogue, and the article's experiments.

`catalogue()` has every event type as a log would give it out; `catalogue(text)` the same with `text` in place of every
text that somebody chose: names, ids, reasons, arguments, keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgspec

from eventlog.cli.text import visible
from eventlog.events import RUN_PREFIX, ProposalRecorded, RunEvent
from eventlog.log import RecordedEvent
from eventlog.proposal import propose
from eventlog.run import Run, fold_fact
from tests.command_line import CommandLine, edit
from tests.test_events import RELEASED

__all__ = ["EXPERIMENTS", "HOSTILE", "approve", "catalogue", "recorded", "run_of_one_action", "start"]

HOSTILE: Final = (
    '"><script>alert(1)</script></style><img src=x onerror=alert(1)> ]]> --> &lt; #35; ;%%{init: {}}%% \\N \\" '
    "\u202egnp.exe\u202c \u200b\x00\x1b[31m\r\nend\nP0->>P1: forged\n} digraph x { <b>y</b> ﬂ°°60¶ß שלום $$x$$ `c`"
)
"""Whatever might mean something to HTML, Mermaid, Graphviz, a terminal or the eye."""


def recorded(
    data: Any, type_name: str, *, version: int = 1, actor: str = "anna", is_known: bool = True
) -> RecordedEvent:
    """Return an event as a log gives it out."""
    return RecordedEvent(
        position=version + 100,
        stream=f"{RUN_PREFIX}run-1",
        version=version,
        type=type_name,
        schema_version=1,
        event_id=bytes(16),
        recorded_at_us=1_796_000_000_000_000 + version,
        actor=actor,
        correlation_id=None,
        causation_id=None,
        body=msgspec.json.encode(data),
        data=data,
        is_known=is_known,
        leaf=hashlib.sha256(str(version).encode()).digest(),
        prev_in_stream=bytes(32),
    )


def catalogue(text: str | None = None) -> list[RecordedEvent]:
    """Return an event of every type, of some in several forms; every text in them is `text`, if that is given."""
    return [
        recorded(
            event if text is None else _spoken(event, text),
            type_name,
            version=version,
            actor="anna" if text is None else text,
        )
        for version, (type_name, event, _) in enumerate(RELEASED, start=1)
    ]


def run_of_one_action(run_id: str, action: str, argument: str, output: str, reason: str) -> tuple[Run, RunEvent]:
    """Return a run that has been proposed, and the event that proposes it; texts as given."""
    proposal = propose(action, {argument: [argument]}, output)
    asked = ProposalRecorded(
        request_id=f"approval:{run_id}",
        proposal=msgspec.Raw(proposal.canonical),
        proposal_hash=proposal.hash,
        folder=output,
        reason=reason,
    )
    return fold_fact(Run(run_id=run_id), asked, version=1, at_us=1, actor=reason), asked


def _spoken(value: Any, text: str) -> Any:
    """Return the value with `text` for every text in it. A status stays: no log gives out another word for it."""
    match value:
        case Enum():
            return value
        case str():
            return text
        case msgspec.Raw():
            return _spoken_json(value, text)
        case msgspec.Struct():
            return type(value)(**{name: _spoken(getattr(value, name), text) for name in value.__struct_fields__})
        case dict():
            return dict.fromkeys([text], _spoken(next(iter(value.values()), None), text))
        case list() | tuple():
            return type(value)(_spoken(each, text) for each in value)
        case _:
            return value


def _spoken_json(raw: msgspec.Raw, text: str) -> msgspec.Raw:
    if not bytes(raw):
        return raw
    is_proposal = b'"action"' in bytes(raw)
    said: Any = {"action": text, "args": {text: [text]}, "output": text} if is_proposal else {text: [text, {"n": text}]}
    return msgspec.Raw(json.dumps(said, ensure_ascii=False).encode())


# ── the article's experiments, by the command line ───────────────────────────────────────────────────────────────────


def start(cli: CommandLine, run_id: str = "run-1", output: str = "draft.txt") -> str:
    """Record the fixture of the article as a run, and return its proposal hash."""
    digest: str = cli("start", run_id, "--output", output, status=0).json["proposal_hash"]
    return digest


def approve(cli: CommandLine, run_id: str = "run-1", output: str = "draft.txt") -> str:
    """Start a run and approve it; return its proposal hash."""
    digest = start(cli, run_id, output)
    cli("approve", run_id, "--proposal-hash", digest, "--reason", "read and agreed", status=0)
    return digest


def _another_request(cli: CommandLine) -> list[str]:
    approve(cli)
    edit(cli.folder / "a.db", "UPDATE runs SET request_id='approval:run-2' WHERE run_id='run-1'")
    cli("resume", "run-1", status=2)
    return ["approval_request_mismatch", "approval:run-2", "approval:run-1"]


def _other_arguments(cli: CommandLine) -> list[str]:
    digest = approve(cli)
    other = propose("write_draft", {"content": "unauthorized change"}, "draft.txt")
    statement = "UPDATE runs SET args=?, proposal_hash=? WHERE run_id='run-1'"
    edit(cli.folder / "a.db", statement, '{"content":"unauthorized change"}', other.hash)
    cli("resume", "run-1", status=2)
    return ["proposal_hash_mismatch", other.hash, digest, "unauthorized change"]


def _another_output(cli: CommandLine) -> list[str]:
    approve(cli)
    cli("resume", "run-1", "--output", "other.txt", status=2)
    return ["output_mismatch", "other.txt", "draft.txt"]


def _resumed_again(cli: CommandLine) -> list[str]:
    approve(cli)
    for _ in range(2):
        cli("resume", "run-1", status=0)
    return ["already_completed", "nothing was done", "action_replayed", "action_executed"]


def _crashed(cli: CommandLine) -> list[str]:
    """The crash window: a real process dies in it."""
    approve(cli)
    process = CommandLine(cli.folder, "--db", "a.db")
    process("resume", "run-1", env={"EVENTLOG_FAILPOINT": "effect.after"}, status=91)
    cli("resume", "run-1", status=0)
    return ["action_recovered", "had been done by an earlier attempt", "did not repeat it"]


def _conflicting(cli: CommandLine) -> list[str]:
    """The other end of the crash window: the target holds something else."""
    approve(cli)
    (cli.folder / "draft.txt").write_text("different content\n", encoding="utf-8")
    cli("resume", "run-1", status=2)
    found = hashlib.sha256(b"different content\n").hexdigest()
    expected = hashlib.sha256(b"approved technical brief").hexdigest()
    return ["output_conflict", found, expected, visible("different content\n")]


EXPERIMENTS: Final[dict[str, Callable[[CommandLine], list[str]]]] = {
    "another request": _another_request,
    "other arguments and hash": _other_arguments,
    "another output": _another_output,
    "resumed again": _resumed_again,
    "crashed in between": _crashed,
    "another content": _conflicting,
}
"""The article's five experiments, the last with both of its ends. Each returns what its story has to say. The log is
`a.db`."""
