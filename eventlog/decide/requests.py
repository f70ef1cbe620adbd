"""Which of the requests of a run a person means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from eventlog.decide.answers import Refusal, check_supplied, refuse_transition, require_run
from eventlog.run import Run, Status

__all__ = ["choose_request", "is_pending"]


def is_pending(request: Run) -> bool:
    """Say whether somebody has to decide on it."""
    return request.status is Status.WAITING_FOR_USER


def choose_request(
    run: Run,
    requests: Sequence[Run],
    attempted: str,
    *,
    request_id: str | None = None,
    supplied_hash: str | None = None,
    is_candidate: Callable[[Run], bool] = is_pending,
    has_to_name: bool = False,
) -> Run | Refusal:
    """Return the request that is meant, or the refusal of a command that does not say so.

    `requests` are all of the run, each as of now. The one that is named by `request_id`; else the only one that asks,
    or has ever asked, for the supplied hash, whatever became of it: who sends a decision twice must not decide on the
    next request, which asks the same; else the only candidate. If there is no candidate at all, the only request is
    still found, so that the refusal says what became of it. A command without a hash that must not be sent twice either
    `has_to_name` what it means, where the run has several. Raises InvalidInput for an id that could not be recorded.
    """
    require_run(run)
    if request_id is not None:
        check_supplied("request", request_id)
        return _named(run, requests, attempted, request_id, supplied_hash)
    candidates = [request for request in requests if is_candidate(request)]
    with_hash = [request for request in requests if supplied_hash is not None and _asked(run, request, supplied_hash)]
    meant = with_hash or candidates or requests
    is_named = len(requests) == 1 or not has_to_name
    return meant[0] if len(meant) == 1 and is_named else _ambiguous(run, meant, attempted, supplied_hash)


def _asked(run: Run, request: Run, hash: str) -> bool:
    """Say whether the request asks for the proposal with this hash, or did before somebody edited it."""
    closed = run.progress.closed_hashes.get(request.step, ()) if run.progress is not None else ()
    return hash == request.proposal_hash or hash in closed


def _named(
    run: Run, requests: Sequence[Run], attempted: str, request_id: str, supplied_hash: str | None
) -> Run | Refusal:
    for request in requests:
        if request.request_id == request_id:
            return request
        if request_id in request.superseded:
            return refuse_transition(
                request,
                "approval_not_pending",
                attempted,
                f"the request {request_id!r} of run {run.run_id!r} was edited: {request.request_id!r} is asked instead",
                supplied_hash=supplied_hash,
                detail=request_id,
                superseded_by=request.request_id,
            )
    return refuse_transition(
        run,
        "unknown_request",
        attempted,
        f"run {run.run_id!r} has no request {request_id!r}",
        supplied_hash=supplied_hash,
        detail=request_id,
        requests=[request.request_id for request in requests],
    )


def _ambiguous(run: Run, requests: Sequence[Run], attempted: str, supplied_hash: str | None) -> Refusal:
    if not requests:
        message = f"run {run.run_id!r} has not asked for anything"
        return refuse_transition(run, "approval_not_pending", attempted, message, supplied_hash=supplied_hash)
    return refuse_transition(
        run,
        "request_ambiguous",
        attempted,
        f"run {run.run_id!r} has {len(requests)} requests; say which one is meant",
        supplied_hash=supplied_hash,
        requests=[request.request_id for request in requests],
    )
