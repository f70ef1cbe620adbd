"""Verdicts as people and programs read them: a table of lines, tab-separated lines, and plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import to_builtins

from eventlog.audit.verify import Finding
from eventlog.cli.output import counted, grouped
from eventlog.cli.text import visible
from eventlog.log import Problem
from eventlog.times import time_text

__all__ = ["as_document", "human_lines", "plain_lines"]

_MEANING: Final = {
    "integrity": "every event is what its hash says",
    "order": "positions, versions and times follow one another",
    "tree": "the stored Merkle tree is the one that the leaves make",
    "heads": "the log goes on from every signed head that is known",
    "approvals": "who approved what, and how sure that is",
    "erasures": "bodies that are gone were erased by an event that says so",
    "artifacts": "every large value that an event names is there, and is what its name says",
    "snapshots": "the states that runs may be resumed from are what their events add up to",
    "views": "the views that are known here are what the log says",
}
_KEYS: Final = {
    "pinned": "signatures opened under the pinned keys, and those that they handed over to",
    "self_declared": "no key is pinned: signatures opened under the keys that the log itself declares",
    "none": "no key is pinned, and the log declares none: signatures are not opened",
}
_APPROVERS: Final = {
    "pinned": "every signature is under a pinned key of its approver",
    "self_declared": "keys that are not pinned (--approver) are whose the log says; whoever writes it can enrol any",
}
_SHOWN: Final = 20


def as_document(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain data."""
    problems: Any = to_builtins(finding.problems)
    return {"verdict": finding.verdict, "problems": problems, "problem_count": finding.count, **finding.details}


def plain_lines(name: str, finding: Finding) -> list[str]:
    """Return lines of tab-separated fields: the verdict, each problem, and what it is made up of."""
    problems = [
        "\t".join((name, "problem", str(problem.position or "-"), problem.reason, visible(problem.message)))
        for problem in finding.problems
    ]
    return [f"{name}\t{finding.verdict}\t{finding.count}", *problems, *_plain_details(name, finding.details)]


def human_lines(name: str, finding: Finding) -> list[str]:
    """Return lines for people."""
    lines = [f"{name:<10} {finding.verdict:<11} {_MEANING[name]}"]
    lines += [f"    {_sentence(problem)}" for problem in finding.problems]
    left = finding.count - len(finding.problems)
    lines += [f"    … and {left} more"] if left else []
    return [*lines, *(f"    {line}" for line in _human_details(name, finding.details))]


def _plain_details(name: str, details: Mapping[str, Any]) -> Iterator[str]:
    for key, value in details.items():
        match key:
            case "checked":
                yield from ("\t".join((name, key, visible(each["name"]), each["verdict"])) for each in value)
            case "not_checked":
                yield from ("\t".join((name, key, visible(each["name"]), visible(each["why"]))) for each in value)
            case "approvals":
                yield from ("\t".join((name, "approval", *_fields(each))) for each in value)
            case _:
                yield from ("\t".join((name, key, *fields)) for fields in _spelled(value))


def _spelled(value: Any) -> Iterator[tuple[str, ...]]:
    """Give the lines of fields that a detail is spelled in: one for what is single, one for each of several."""
    match value:
        case dict():
            yield from ((str(name), _cell(each)) for name, each in value.items())
        case list():
            yield from (_fields(each) if isinstance(each, dict) else (_cell(each),) for each in value)
        case _:
            yield (_cell(value),)


def _fields(each: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(map(_cell, each.values()))


def _cell(value: Any) -> str:
    return "-" if value is None else visible(str(value))


def _human_details(name: str, details: Mapping[str, Any]) -> Iterator[str]:
    match name:
        case "heads" if details:
            yield from _about_heads(details)
        case "approvals" if details:
            yield from _about_approvals(details)
        case "erasures" if details:
            yield from _about_erasures(details)
        case "views":
            yield from _about_views(details)
    yield from (f"cannot tell: {why}" for why in _whys(details))


def _whys(details: Mapping[str, Any]) -> list[str]:
    unknown: list[str] = details.get("unknown", [])
    return unknown[:_SHOWN]


def _about_heads(details: Mapping[str, Any]) -> Iterator[str]:
    if details["anchored_to"] is None:
        yield f"unanchored: no head from outside vouches for any of {counted(details['unprotected'], 'event')}"
    else:
        at_us = details["anchored_at_us"]
        when = "" if at_us is None else f" at {time_text(at_us)}"
        newer = counted(details["unprotected"], "newer event")
        yield f"anchored up to {grouped(details['anchored_to'])}{when}; {newer} unprotected"
    known = details["in_database"] + details["outside"]
    if known:
        signed = "none signed by a key that counts" if details["signed_to"] is None else f"to {details['signed_to']}"
        yield f"{counted(known, 'head')} ({grouped(details['outside'])} from outside), signed: {signed}"
        yield _KEYS[details["keys"]]
        if details["outside"] and (details["signed_to"] or 0) > (details["anchored_to"] or 0):
            kept = f"the database keeps a signed head of size {grouped(details['signed_to'])}"
            yield f"{kept}, beyond those from outside: the file of its signer, if that was given, has lost heads"
    for each in details["restores"]:
        yield f"restored at position {each['position']}, what was lost ends at {each['lost_to']}: {each['reason']}"
    for each in details["key_problems"]:
        yield f"position {each['position']} changes no key: {each['why']}"
    if details["left_out"]:
        yield f"{counted(details['left_out'], 'older head')} not looked at"


def _about_approvals(details: Mapping[str, Any]) -> Iterator[str]:
    levels = ", ".join(f"level {level}: {grouped(count)}" for level, count in details["levels"].items())
    states = ", ".join(f"{state}: {grouped(count)}" for state, count in details["states"].items())
    if states:
        yield "; ".join(filter(None, (levels, states)))
    if details["keys"] in _APPROVERS:
        yield _APPROVERS[details["keys"]]
    if details["witnessed_to"]:
        yield f"approvers have signed that they saw the log as it is, up to position {details['witnessed_to']}"
    shown = [each for each in details["approvals"] if each["verdict"] != "unsigned"]
    for each in shown[:_SHOWN]:
        signed = "" if each["key_id"] is None else f", key {each['key_id'][:16]} ({each['key']})"
        why = "" if each["reason"] is None else f" ({each['reason']})"
        yield (
            f"position {each['position']}: {each['decision']} of {each['request']} in {each['run']} by"
            f" {each['approver']}, level {each['level']}{signed}: {each['verdict']}{why}"
        )
    if len(shown) > _SHOWN:
        yield f"… and {len(shown) - _SHOWN} more (--json lists them)"


def _about_erasures(details: Mapping[str, Any]) -> Iterator[str]:
    if details["erased"]:
        first = ", ".join(map(str, details["first_erased"]))
        yield f"{counted(details['erased'], 'body')} erased, at the positions {first}".replace("bodys", "bodies")
    if details["lost"]:
        yield f"LOST or TAMPERED: {grouped(details['lost'])}"
    if details["subject_keys_destroyed"]:
        destroyed = counted(details["subject_keys_destroyed"], "subject key")
        yield f"{destroyed} destroyed, which {counted(details['subject_erased'], 'event')} cannot be read without"
    if details["key_missing"]:
        yield f"{counted(details['key_missing'], 'event')} encrypted, and unreadable here"


def _about_views(details: Mapping[str, Any]) -> Iterator[str]:
    for each in details.get("checked", ()):
        rows = "" if "rows" not in each else f", {grouped(each['rows'])} rows up to position {each['position']}"
        yield f"{each['name']}, revision {each['revision']}: {each['verdict']}{rows}"
    for each in details.get("not_checked", ()):
        yield f"{each['name']}, revision {each['revision']}: not checked, {each['why']}"


def _sentence(problem: Problem) -> str:
    where = f"position {problem.position}: " if problem.position is not None else ""
    return f"{where}{problem.message} [{problem.reason}]"
