"""What was frozen at the approval, compared with what the log holds now, and with what people saw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from eventlog.decide.answers import Accepted, Refusal, proposal_of, refuse_resume
from eventlog.errors import InvalidInput, Refused
from eventlog.events import ProposalRejected, ProposalVerified
from eventlog.proposal import Proposal, canonical_args, canonical_bytes, hash_of
from eventlog.run import Run

__all__ = ["compare_frozen", "compare_view", "view_columns"]

_MAX_VIEWED: Final = 4096


def compare_frozen(run: Run, output: str | None) -> Accepted | Refusal:
    """Return the `proposal_verified` of a resume, or what differs: the output, the request or a hash, in this order."""
    proposal = proposal_of(run)
    if output is not None and output != proposal.output:
        return _other_output(run, proposal, output)
    if run.request_id != run.approval_request_id:
        return _other_request(run, run.request_id or "", None)
    current_hash = hash_of(proposal.canonical)
    if not current_hash == run.proposal_hash == run.approval_hash:
        return _changed_since_approval(run, proposal, current_hash, run.proposal_hash, None)
    return Accepted((ProposalVerified(phase="resume", proposal_hash=current_hash),))


def view_columns(run: Run) -> dict[str, Any]:
    """Return the row that the `runs` view must hold for this run."""
    proposal = proposal_of(run)
    return {
        "run_id": run.run_id,
        "status": run.status.value,
        "request_id": run.request_id,
        "action": proposal.action,
        "args": canonical_args(proposal.canonical),
        "output": proposal.output,
        "proposal_hash": run.proposal_hash,
        "approval": run.approval,
        "approval_request_id": run.approval_request_id,
        "approval_hash": run.approval_hash,
        "executed": int(run.executed),
    }


def compare_view(run: Run, row: Mapping[str, Any]) -> Refusal | None:
    """Compare what people saw with the log, before the effect. None if the row is the one the log says.

    A row that differs in the request is `approval_request_mismatch`; in action, args, output or hash
    `proposal_hash_mismatch`; in anything else `view_mismatch`.
    """
    expected = view_columns(run)
    differing = [name for name, value in expected.items() if not _is_exactly(row.get(name), value)]
    if not differing:
        return None
    viewed = {name: _viewed(row.get(name)) for name in expected}
    if "request_id" in differing:
        return _other_request(run, str(viewed["request_id"]), viewed)
    if not {"action", "args", "output", "proposal_hash"}.isdisjoint(differing):
        return _other_viewed_proposal(run, row, viewed)
    return refuse_resume(
        run,
        "view_mismatch",
        f"the view of run {run.run_id!r} differs from its log in {', '.join(differing)}",
        detail=", ".join(differing),
        viewed=viewed,
    )


def _other_output(run: Run, proposal: Proposal, output: str) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="output_mismatch",
            action=proposal.action,
            current_output=output,
            approved_output=proposal.output,
        ),
        Refused(
            "output_mismatch",
            f"run {run.run_id!r} was approved for {proposal.output!r}, not for {output!r}",
            run_id=run.run_id,
            current_output=output,
            approved_output=proposal.output,
        ),
    )


def _other_request(run: Run, current_request_id: str, viewed: dict[str, Any] | None) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="approval_request_mismatch",
            action=proposal_of(run).action,
            current_request_id=current_request_id,
            approved_request_id=run.approval_request_id,
            viewed=viewed,
        ),
        Refused(
            "approval_request_mismatch",
            f"run {run.run_id!r} asks {current_request_id!r}, but {run.approval_request_id!r} was approved",
            run_id=run.run_id,
            current_request_id=current_request_id,
            approved_request_id=run.approval_request_id,
        ),
    )


def _other_viewed_proposal(run: Run, row: Mapping[str, Any], viewed: dict[str, Any]) -> Refusal:
    try:
        args = msgspec.json.decode(row["args"])
        current_hash = hash_of(canonical_bytes({"action": row["action"], "args": args, "output": row["output"]}))
    except (InvalidInput, ValueError, TypeError, KeyError):
        current_hash = None  # the row is no proposal at all; what it holds is in `viewed`
    stored_hash = viewed["proposal_hash"]
    return _changed_since_approval(
        run, proposal_of(run), current_hash, None if stored_hash is None else str(stored_hash), viewed
    )


def _changed_since_approval(
    run: Run, proposal: Proposal, current_hash: str | None, stored_hash: str | None, viewed: dict[str, Any] | None
) -> Refusal:
    return Refusal(
        ProposalRejected(
            phase="resume",
            reason="proposal_hash_mismatch",
            action=proposal.action,
            current_hash=current_hash,
            stored_hash=stored_hash,
            approval_hash=run.approval_hash,
            viewed=viewed,
        ),
        Refused(
            "proposal_hash_mismatch",
            f"what run {run.run_id!r} holds now is not what was approved",
            run_id=run.run_id,
            current_hash=current_hash,
            approval_hash=run.approval_hash,
        ),
    )


def _is_exactly(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and bool(found == expected)


def _viewed(value: Any) -> Any:
    """Return a cell of a view as plain data that is safe to store: whoever edited it chose its bytes."""
    if isinstance(value, bytes):
        return value[:_MAX_VIEWED].hex()
    if isinstance(value, str):
        return value[:_MAX_VIEWED].encode(errors="replace").decode()
    return value if value is None or isinstance(value, int) else repr(value)
