"""Everything that can go wrong: every code that is raised is explained, and nothing else is."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventlog import errors
from eventlog.errors import (
    CODES,
    AppendTooLate,
    ApprovalExpired,
    ApprovalRejected,
    ClaimLost,
    CommitOutcomeUnknown,
    Conflict,
    EventLogError,
    EventTypeUnknown,
    InvalidInput,
    LogCorrupt,
    MirrorBehind,
    MirrorDamaged,
    Misuse,
    OutcomeUnknown,
    Refused,
    RunConflict,
    StepFailed,
    StoreBusy,
    StoreUnavailable,
    WaitTimedOut,
    WrongExpectedVersion,
)

ROOT = Path(__file__).resolve().parent.parent
CLASSES: list[type[EventLogError]] = [
    cls for cls in vars(errors).values() if inspect.isclass(cls) and issubclass(cls, EventLogError)
]

# Each class that has one code of its own, made as its raiser makes it.
OF_ONE_CODE: list[tuple[EventLogError, str]] = [
    (WrongExpectedVersion("orders-7", "at version 3", 5), "version_conflict"),
    (AppendTooLate(at_us=7, before_us=3), "append_too_late"),
    (RunConflict("run-1", "another resumer was first"), "run_conflict"),
    (ClaimLost("run-1", epoch=7, held=3), "claim_lost"),
    (LogCorrupt("leaf_mismatch", "position 3 is not what its hash says", position=3, stream="a"), "log_corrupt"),
    (StoreBusy("the write lock was not free in time", waited_s=5.0), "store_busy"),
    (CommitOutcomeUnknown(["ab", "cd"], "it is unknown whether the events are stored"), "commit_outcome_unknown"),
    (OutcomeUnknown("run-1", "the process died"), "outcome_unknown"),
    (EventTypeUnknown("run:run-1", 3, "from_the_future"), "event_type_unknown"),
    (ApprovalRejected("the proposal was rejected", reason="not now", actor="ann"), "approval_rejected"),
    (ApprovalExpired("nobody decided in time", run_id="run-1"), "approval_expired"),
    (StepFailed("the step failed", step="look", error_type="ValueError", attempts=3), "step_failed"),
    (WaitTimedOut("nobody sent it in time", run_id="run-1"), "wait_timed_out"),
    (MirrorBehind("run:run-1", "the disk is full", version=3, mirrored=2), "mirror_behind"),
]


def trees() -> Iterator[tuple[str, ast.Module]]:
    """Yield the syntax tree of every file of the two packages."""
    for package in ("eventlog", "projections"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def raised_codes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the codes that are given to error classes as they stand, and their lines."""
    names = {cls.__name__ for cls in CLASSES} - {type(error).__name__ for error, _ in OF_ONE_CODE}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(code)), *_]
            ) if name in names:
                yield code, node.lineno
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"),
                args=[ast.Constant(value=str(code)), *_],
            ):
                yield code, node.lineno


def words(path: str, tree: ast.Module) -> set[str]:
    """Return every text that stands in a file as a value; in errors.py not those of the table itself."""
    table = next((node for node in ast.walk(tree) if is_table(node)), None) if path.endswith("errors.py") else None
    in_table = set(map(id, ast.walk(table))) if table is not None else set()
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in in_table)
    return {node.value for node in constants if isinstance(node.value, str)}


def is_table(node: ast.AST) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CODES"


def test_every_code_that_is_raised_is_explained() -> None:
    found = [(code, f"{path}:{line}") for path, tree in trees() for code, line in raised_codes(tree)]
    assert len({code for code, _ in found}) > 20, "the search itself works"
    assert [each for each in found if each[0] not in CODES] == []


def test_every_code_that_is_explained_is_raised() -> None:
    used = set().union(*(words(path, tree) for path, tree in trees()))
    assert sorted(set(CODES) - used) == []


@pytest.mark.parametrize("code", CODES)
def test_an_explanation_is_two_sentences_for_people(code: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", code)
    for sentence in CODES[code]:
        assert sentence[0].isupper() or sentence[0] == "`"
        assert sentence.endswith(".")
        assert len(sentence) <= 120


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_class_says_what_it_is_and_is_exported(cls: type[EventLogError]) -> None:
    assert cls.__doc__
    assert cls.__name__ in errors.__all__


def test_the_tree_is_drawn_as_it_is() -> None:
    assert errors.__doc__
    drawn: dict[str, str] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ([│├└─ ]*)([A-Z][A-Za-z]+)(\s|$)", line)
        if found:
            depth = len(found[1]) // 4
            above[depth:] = [found[2]]
            drawn[found[2]] = above[depth - 1] if depth else "Exception"
    assert drawn == {cls.__name__: cls.__base__.__name__ for cls in CLASSES if cls.__base__}


@pytest.mark.parametrize(("error", "code"), OF_ONE_CODE, ids=[code for _, code in OF_ONE_CODE])
def test_an_error_carries_its_code_its_hint_and_its_facts(error: EventLogError, code: str) -> None:
    assert error.code == code
    assert error.hint == CODES[code].hint
    assert f"`{code}`" in (type(error).__doc__ or "")
    assert str(error)
    assert error.details
    assert all(isinstance(value, str | int | float | list | None) for value in error.details.values()), "plain data"


def test_facts_are_attributes_too() -> None:
    missed = WrongExpectedVersion("orders-7", "at version 3", 5)
    assert (missed.stream, missed.expected, missed.actual) == ("orders-7", "at version 3", 5)
    assert str(missed) == "stream 'orders-7' was expected at version 3 but is at version 5"
    damage = LogCorrupt("leaf_mismatch", "position 3 is not what its hash says", position=3, stream="a")
    assert (damage.reason, damage.position, damage.stream) == ("leaf_mismatch", 3, "a")
    assert CommitOutcomeUnknown(["ab", "cd"], "unknown").event_ids == ("ab", "cd")
    rejected = ApprovalRejected("no", reason="not now", actor="ann")
    assert (rejected.reason, rejected.actor) == ("not now", "ann")


def test_an_input_that_is_refused_says_where() -> None:
    error = InvalidInput("non_finite_number", "nan is not a JSON number", path="$.items[0].price")
    assert (error.path, error.details["path"]) == ("$.items[0].price", "$.items[0].price")
    assert str(error) == "nan is not a JSON number (at $.items[0].price)"
    assert str(InvalidInput("invalid_id", "the stream is empty")) == "the stream is empty"


def test_a_refusal_is_labelled_with_its_subject_where_it_has_one() -> None:
    assert Refused("unknown_run", "there is no run 'x'", subject="x").label == "unknown_run:x"
    assert Refused("approval_required", "nobody has approved it").label == "approval_required"


def test_an_error_without_an_explanation_cannot_be_made() -> None:
    with pytest.raises(KeyError):
        Misuse("no_such_code", "this cannot be")


def test_what_to_do_is_told_by_the_branch_of_the_tree() -> None:
    branches: list[tuple[type[EventLogError], set[type[EventLogError]]]] = [
        (Conflict, {AppendTooLate, WrongExpectedVersion, RunConflict, ClaimLost}),
        (StoreUnavailable, {StoreBusy, CommitOutcomeUnknown}),
        (
            Refused,
            {
                errors.ActionConflict,
                errors.ActionFailed,
                ApprovalExpired,
                ApprovalRejected,
                EventTypeUnknown,
                OutcomeUnknown,
                StepFailed,
                WaitTimedOut,
            },
        ),
    ]
    for branch, leaves in branches:
        assert set(branch.__subclasses__()) == leaves


@pytest.mark.parametrize(
    "error",
    [
        *(error for error, _ in OF_ONE_CODE),
        Refused("unknown_run", "there is no run 'x'", subject="x", run_id="x"),
        InvalidInput("invalid_text", "a lone surrogate", path="$.a", what="text"),
        Misuse("reserved_stream", "it belongs to the engine", stream="$log"),
        StoreUnavailable("engine_closed", "the log is closed"),
        MirrorDamaged("mirror_ahead", "it goes further than the log", path="x.jsonl", stream="run:x", offset=7),
    ],
    ids=lambda error: error.code,
)
def test_an_error_survives_the_way_to_another_process(error: EventLogError) -> None:
    found: Any = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
