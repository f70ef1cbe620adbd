"""What is shipped for tests: a clock, given/when/then, and a contract suite that finds the logs that break it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog import decide
from eventlog.decide import Accepted
from eventlog.events import ActionReplayed, CheckpointSaved, ProposalVerified, ResumeRejected, RunEvent, Status
from eventlog.proposal import propose
from eventlog.testing.clock import FakeClock
from eventlog.testing.given import Command, given

ROOT = Path(__file__).resolve().parent.parent
PROPOSAL = propose("write_draft", {}, "out.txt")


# ── the clock ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_fake_clock_stands_still_until_it_is_advanced() -> None:
    clock = FakeClock(now_us=10, monotonic_s=2.0)
    assert [(clock.now_us(), clock.monotonic_s()) for _ in range(2)] == [(10, 2.0)] * 2
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_s()) == (1_500_010, 3.5)


def test_a_fake_clock_jumps_on_the_wall_alone() -> None:
    clock = FakeClock(now_us=10, monotonic_s=2.0)
    clock.set(3)
    assert (clock.now_us(), clock.monotonic_s()) == (3, 2.0)
    with pytest.raises(ValueError, match="forwards"):
        clock.advance(-0.1)


# ── given, when, then: what is not so is reported ────────────────────────────────────────────────────────────────────

REFUSED = ResumeRejected(reason="approval_required", status="WAITING_FOR_USER")
STARTED: tuple[RunEvent, ...] = decide.start(given().run, PROPOSAL).events
RESUME: Command = lambda run: decide.resume(run, None)  # noqa: E731
NOTHING: Command = lambda run: Accepted(())  # noqa: E731


def test_what_is_so_lets_a_story_go_on() -> None:
    (
        given(*STARTED)
        .has(version=2)
        .when(RESUME)
        .then_refused("approval_required", REFUSED)
        .has(version=3)
        .when(NOTHING)
        .then()
        .has(version=3)
    )


def test_another_outcome_than_the_expected_one_is_reported() -> None:
    refused = given(*STARTED).when(RESUME)
    accepted = given(*STARTED).when(NOTHING)
    raised = given().when(RESUME)
    wrongs: list[Callable[[], object]] = [
        lambda: refused.then(),
        lambda: refused.then_replayed(ActionReplayed(reason="already_completed")),
        lambda: refused.then_raises("approval_required"),
        lambda: refused.then_refused("approval_rejected", REFUSED),
        lambda: refused.then_refused("approval_required", ResumeRejected(reason="approval_required", status="x")),
        lambda: accepted.then(ProposalVerified(phase="resume", proposal_hash="x")),
        lambda: accepted.then_refused("approval_required", REFUSED),
        lambda: accepted.then_raises("unknown_run"),
        lambda: raised.then(),
        lambda: raised.then_refused("unknown_run", REFUSED),
        lambda: raised.then_raises("run_exists"),
        lambda: given(*STARTED).has(status=Status.APPROVED),
        lambda: given(CheckpointSaved(status=Status.APPROVED, state_version=1)).has(state_version=2),
    ]
    for wrong in wrongs:
        with pytest.raises(AssertionError):
            wrong()


# ── the contract finds what breaks it ────────────────────────────────────────────────────────────────────────────────

SUITE = """
import pytest
from eventlog.errors import EventLogError
from eventlog.log import Expect
from eventlog.stores.memory import MemoryLog
from eventlog.testing.log_contract import {part}
from msgspec.structs import replace

class Log(MemoryLog):
{body}

class TestLog({part}):
    @pytest.fixture
    def new_log(self):
        return lambda **options: Log(**{{"actor": "os:1", **options}})
"""

KEPT = "    pass"

BROKEN = {
    "expectations are ignored": (
        "ExpectContract",
        """
    def _store(self, request):
        parts = [replace(part, expect=Expect.any()) for part in request.parts]
        return super()._store(replace(request, parts=parts))
""",
    ),
    "checks are ignored": (
        "AppendManyContract",
        """
    def _store(self, request):
        return super()._store(replace(request, checks=()))
""",
    ),
    "half of a refused call is kept": (
        "AppendManyContract",
        """
    def _store(self, request):
        try:
            return super()._store(request)
        except EventLogError:
            for part in request.parts:
                if part.expect.allows(len(self._streams.get(part.stream, ()))):
                    self._store_part(part, request.actor, 0)
            raise
""",
    ),
    "a repeated call is stored again": (
        "RetryContract",
        """
    def _store(self, request):
        self._by_id.clear()
        return super()._store(request)
""",
    ),
    "anybody may write reserved streams": (
        "ReservedContract",
        """
    async def append(self, stream, events, **options):
        from eventlog.log import Append
        expect = options.pop("expect")
        return (await self._append([Append(stream, events, expect)], (), None, None, None, is_reserved_allowed=True))[0]
""",
    ),
    "a subscriber gets an event twice when it turns live": (
        "SubscribeContract",
        """
    async def subscribe(self, *, after=0, **options):
        async for event in self.read_all(after=after):
            yield event
            after = event.position
        async for event in super().subscribe(after=max(after - 1, 0), **options):
            yield event
""",
    ),
    "events are read without their order": (
        "ReadContract",
        """
    async def read_all(self, **options):
        events = [event async for event in super().read_all(**options)]
        for event in reversed(events):
            yield event
""",
    ),
    "reading back goes round the end": (
        "LookUpContract",
        """
    async def read_back(self, stream, *, before=None, limit=None):
        before = before or None
        async for event in super().read_back(stream, before=before, limit=limit):
            yield event
""",
    ),
    "the limit counts what the filter left out": (
        "LookUpContract",
        """
    async def read_all(self, *, after=0, limit=None, types=None, stream_prefix=None):
        wanted = [event async for event in super().read_all(after=after, types=types, stream_prefix=stream_prefix)]
        async for event in super().read_all(after=after, limit=limit):
            if event in wanted:
                yield event
""",
    ),
    "every tree is the newest": (
        "ProvingContract",
        """
    async def tree_head(self, size=None):
        return await super().tree_head()
""",
    ),
    "a proof lacks its last hash": (
        "ProvingContract",
        """
    async def prove_inclusion(self, position, size):
        return (await super().prove_inclusion(position, size))[:-1]
""",
    ),
    "a refused event is a leaf all the same": (
        "ProvingContract",
        """
    def _store(self, request):
        try:
            return super()._store(request)
        except EventLogError:
            self._frontier.extend([bytes(32)])
            raise
""",
    ),
    "an entry has another salt": (
        "ProvingContract",
        """
    async def read_entries(self, stream=None, *, after=0):
        async for entry in super().read_entries(stream, after=after):
            yield replace(entry, salt=bytes(16))
""",
    ),
    "an event is found under an id that was never stored": (
        "LookUpContract",
        """
    async def find(self, event_id):
        return await super().find(event_id) or next(iter(self._events), None)
""",
    ),
}


def run_suite(folder: Path, part: str, body: str) -> subprocess.CompletedProcess[str]:
    """Run a part of the contract over a log with this body of a class, as somebody else's project would."""
    (folder / "test_log.py").write_text(SUITE.format(part=part, body=body), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--asyncio-mode=auto", "--timeout=60", "test_log.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_a_log_of_somebody_elses_project_keeps_the_contract(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, "ReadContract", KEPT)
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout


@pytest.mark.parametrize(("part", "body"), BROKEN.values(), ids=BROKEN)
def test_the_contract_finds_a_log_in_which(tmp_path: Path, part: str, body: str) -> None:
    ended = run_suite(tmp_path, part, body)
    assert ended.returncode == 1, ended.stdout
    assert "FAILED test_log.py::TestLog::" in ended.stdout
    assert "SyntaxError" not in ended.stdout and "NameError" not in ended.stdout
