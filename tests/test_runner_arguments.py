"""What the calls of the runtime are given wrongly is refused by its name, before anything is written."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import eventlog
from eventlog import InvalidInput, Policy, Retry, RunContext, Runner, Worker
from eventlog.runtime.approval_statements import approval_statement
from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import whole_log
from tests.workflow_runs import Calls, effect, runner_for
from tools.campaigns.storage.log_files import open_file


class Thing:
    """Of no type that anybody asks for."""


VALUES: Final[Mapping[str, Any]] = {
    "none": None,
    "true": True,
    "number": 5,
    "fraction": 1.5,
    "text": "x",
    "bytes": b"x",
    "list": ["a"],
    "dict": {"a": 1},
    "thing": Thing(),
}
PROPOSAL: Final = eventlog.propose("apply", {"by": 1}, "target")
PLAIN: Final = frozenset(VALUES) - {"bytes", "thing"}
RIGHT: Final[Mapping[str, frozenset[str]]] = {
    "args": frozenset({"dict"}),
    "approves": frozenset({"true"}),
    "at_version": frozenset({"number"}),
    "clock": frozenset(),
    "displayed": frozenset(),
    "envelope": frozenset(),
    "is_authenticated": frozenset({"true"}),
    "payload": PLAIN,
    "proposal": frozenset(),
    "result": frozenset(VALUES),  # what cannot be stored is refused where there is an outcome to settle
    "roles": frozenset({"list", "dict"}),
    "valid_for_s": frozenset({"number", "fraction"}),
    "workflow": frozenset(),
}
"""Which of the values are of the type that an argument asks for; the others ask for a text."""

COMMANDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "start": {"run_id": "run-2"},
    "submit": {"run_id": "run-2"},
    "signal": {"run_id": "flow-1", "name": "go"},
    "propose": {"run_id": "run-2", "proposal": PROPOSAL},
    "approve": {"run_id": "run-1", "proposal_hash": PROPOSAL.hash},
    "reject": {"run_id": "run-1", "proposal_hash": PROPOSAL.hash},
    "edit": {"run_id": "run-1", "args": {"by": 2}},
    "revoke": {"run_id": "run-1"},
    "cancel": {"run_id": "run-1"},
    "expire": {"run_id": "run-1"},
    "resume": {"run_id": "run-1"},
    "reconcile": {"run_id": "run-1", "verdict": "executed", "evidence": "looked"},
    "compensate": {"run_id": "run-1"},
    "state": {"run_id": "run-1"},
    "trace": {"run_id": "run-1"},
}


def cases_of(call: Any, name: str) -> list[Any]:
    """Return every argument of the call with every value that is not of its type."""
    found = []
    for argument, parameter in inspect.signature(call).parameters.items():
        if argument in ("self", "log") or parameter.kind is parameter.VAR_POSITIONAL:
            continue
        right = RIGHT.get(argument, frozenset({"text"})) | ({"none"} if parameter.default is None else set())
        found += [pytest.param(name, argument, kind, id=f"{name}-{argument}-{kind}") for kind in VALUES.keys() - right]
    return sorted(found, key=lambda case: str(case.id))


@eventlog.workflow
async def listens(run: RunContext) -> Any:
    return await run.wait_for_signal("go")


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[MemoryLog | SqliteLog]:
    async with whole_log("sqlite", tmp_path) as log:
        yield log


async def scene(log: Any) -> Runner:
    """Return a runner on a log in which run-1 waits for a decision and flow-1 for a signal."""
    runner = runner_for(log, FakeClock(), listens, actions=[effect(Calls())])
    await runner.propose("run-1", PROPOSAL)
    await runner.submit(listens, "flow-1")
    return runner


def assert_names(error: InvalidInput, argument: str, value: object) -> None:
    """Fail unless the error says which argument is wrong, and what it is."""
    told = {"run_id": "run id", "name": "the signal", "workflow": "a workflow", "payload": "plain"}
    assert told.get(argument, f"`{argument}` is") in str(error)
    assert type(value).__name__ in str(error) or repr(value)[:80] in str(error)


def test_every_command_of_a_runner_is_looked_at_here() -> None:
    commands = {name for name, member in vars(Runner).items() if inspect.iscoroutinefunction(member)}
    assert {name for name in commands if not name.startswith("_")} == set(COMMANDS)


@pytest.mark.parametrize(
    ("command", "argument", "kind"), [case for name in COMMANDS for case in cases_of(getattr(Runner, name), name)]
)
async def test_a_command_names_the_argument_that_is_of_another_type_and_writes_nothing(
    log: SqliteLog, command: str, argument: str, kind: str
) -> None:
    runner = await scene(log)
    before = await log.head()
    given: dict[str, Any] = {**COMMANDS[command], argument: VALUES[kind]}
    first = [given.pop("workflow", listens)] if command in ("start", "submit") else []
    with pytest.raises(InvalidInput) as refused:
        await getattr(runner, command)(*first, **given)
    assert_names(refused.value, argument, VALUES[kind])
    assert await log.head() == before


@pytest.mark.parametrize(("call", "argument", "kind"), cases_of(approval_statement, "approval_statement"))
async def test_a_statement_names_the_argument_that_is_of_another_type(
    log: SqliteLog, call: str, argument: str, kind: str
) -> None:
    await scene(log)
    given: dict[str, Any] = {"run_id": "run-1", "approver": "anna", argument: VALUES[kind]}
    with pytest.raises(InvalidInput) as refused:
        await approval_statement(log, **given)
    assert_names(refused.value, argument, VALUES[kind])


async def test_a_statement_is_made_of_a_log_and_nothing_else() -> None:
    with pytest.raises(eventlog.Misuse, match="int has none"):
        await approval_statement(5, "run-1", approver="anna")  # type: ignore[arg-type]


@pytest.mark.parametrize("at_version", [0, -1, True])
async def test_a_state_is_that_at_a_version_from_1_on(log: SqliteLog, at_version: Any) -> None:
    runner = await scene(log)
    with pytest.raises(InvalidInput, match="a whole number from 1 on"):
        await runner.state("run-1", at_version=at_version)


# ── an approval is of the level that is proved ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("is_authenticated", [2, 3, 5, "2", "", None, 1, 0])
async def test_is_authenticated_is_no_level_by_which_an_approval_counts_as_signed(
    tmp_path: Path, is_authenticated: Any
) -> None:
    async with open_file(tmp_path / "log.db") as log:
        runner = Runner(log, actions=[effect(Calls())], policies={"apply": Policy(level=2)})
        await runner.propose("run-1", PROPOSAL)
        before = await log.head()
        for decide in (runner.approve, runner.reject):
            with pytest.raises(InvalidInput, match="`is_authenticated` is True or False") as refused:
                await decide("run-1", PROPOSAL.hash, actor="anna", is_authenticated=is_authenticated)
            assert (refused.value.code, refused.value.path) == ("invalid_argument", "$.is_authenticated")
        assert await log.head() == before
        with pytest.raises(eventlog.Refused, match="takes approvals of level 2, and this one is 1"):
            await runner.approve("run-1", PROPOSAL.hash, actor="anna", is_authenticated=True)


# ── what programs make ───────────────────────────────────────────────────────────────────────────────────────────────

WRONG: Final[Mapping[str, tuple[Callable[..., Any], str, Any, str]]] = {
    "log-number": (Runner, "log", 5, "a log, as `eventlog.open` gives one"),
    "log-class": (Runner, "log", SqliteLog, "a log, as `eventlog.open` gives one"),
    "actions-one": (Runner, "actions", effect(Calls()), "a list of actions"),
    "actions-text": (Runner, "actions", "apply", "a list of actions"),
    "actions-none": (Runner, "actions", None, "a list of actions"),
    "policies-list": (Runner, "policies", [Policy()], "a mapping of policies"),
    "policies-text": (Runner, "policies", "apply", "a mapping of policies"),
    "workflows-one": (Runner, "workflows", listens, "a list of workflows"),
    "view-text": (Runner, "view", "runs", "a view of runs"),
    "keeps-tracebacks": (Runner, "keeps_tracebacks", "yes", "True or False"),
    "folder-number": (Runner, "folder", 5, "a text, or None"),
    "folder-path": (Runner, "folder", Path("/tmp"), "a text, or None"),
    "clock-zero": (Runner, "clock", 0, "a clock"),
    "reach-none": (Runner, "reach", None, "a function"),
    "runner-number": (Worker, "runner", 5, "a `Runner`"),
    "grace-text": (Worker, "grace_s", "30", "a number of seconds"),
    "grace-true": (Worker, "grace_s", True, "a number of seconds"),
    "roles-number": (Policy, "roles", 5, "several texts"),
    "roles-none": (Policy, "roles", None, "several texts"),
    "only-text": (Retry, "only", "OSError", "a tuple of classes of exceptions"),
    "only-none": (Retry, "only", None, "a tuple of classes of exceptions"),
    "never-number": (Retry, "never", (5,), "a tuple of classes of exceptions"),
    "never-class": (Retry, "never", (int,), "a tuple of classes of exceptions"),
    "continues-number": (
        lambda continues: eventlog.workflow(continues=continues)(listens.function),
        "continues",
        5,
        "a list",
    ),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_a_program_makes_names_the_argument_that_is_of_another_type(log: SqliteLog, case: str) -> None:
    make, argument, value, instead = WRONG[case]
    needed: dict[Any, dict[str, Any]] = {Runner: {"log": log}, Worker: {"runner": Runner(log)}}
    given: dict[str, Any] = {**needed.get(make, {}), argument: value}
    with pytest.raises(InvalidInput) as refused:
        make(**given)
    assert refused.value.code == "invalid_argument"
    assert argument in str(refused.value)
    assert instead in str(refused.value)


def test_one_class_of_exceptions_may_stand_for_a_tuple_as_in_except() -> None:
    retry = Retry(only=OSError, never=FileNotFoundError)  # type: ignore[arg-type]
    assert [retry.allows(error, 1) for error in (OSError(), FileNotFoundError(), ValueError())] == [True, False, False]


async def test_a_view_that_is_shown_has_rows(log: SqliteLog) -> None:
    with pytest.raises(InvalidInput, match="`view` is a view of runs"):
        Runner(log).shows("runs")  # type: ignore[arg-type]


async def test_a_worker_is_told_by_true_or_false_whether_it_ends(log: SqliteLog) -> None:
    with pytest.raises(InvalidInput, match="`until_idle` is True or False, not this str"):
        await Worker(Runner(log)).run(until_idle="yes")  # type: ignore[arg-type]


# ── what a workflow asks for ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workflow_is_told_that_how_often_a_step_is_tried_is_a_retry(log: SqliteLog) -> None:
    caught: list[InvalidInput] = []

    @eventlog.workflow
    async def asks(run: RunContext) -> None:
        try:
            await run.step("s", Calls()("s"), retry=3)  # type: ignore[call-overload]
        except InvalidInput as error:
            caught.append(error)

    await runner_for(log, FakeClock(), asks).start(asks, "flow-1")
    assert [(error.code, error.path) for error in caught] == [("invalid_argument", "$.retry")]
    assert "`retry` is a `Retry`, or None, not this int" in str(caught[0])
