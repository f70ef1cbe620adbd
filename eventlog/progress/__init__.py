"""How far a workflow run has come: its steps, requests, waits and claim, folded from its events. Pure.

    RUNNING ──asks a person──▶ WAITING_FOR_USER ──decided──▶ RUNNING ──▶ COMPLETED
       ├────a signal, timer, child──▶ WAITING ──it came──▶ RUNNING
       ├────an effect nobody knows of──▶ OUTCOME_UNKNOWN ──reconciled──▶ RUNNING
       ├────it raised──▶ FAILED ──resumed──▶ RUNNING
       ├────it did not handle a "no", or that nobody decided──▶ REJECTED, EXPIRED
       └────a person──▶ CANCELLED

Whatever comes behind an end changes nothing of it; only a claim takes up a run that FAILED.

The state of each request is a `Run`, as in a run of one action. What a step came to is *pending* until it is committed:
by its own event if it stood alone, by a checkpoint if it belongs to a group, or if it failed. A failure that no
checkpoint has committed is forgotten when a run that FAILED is taken up again: the workflow did not handle it, and the
step is tried again.

Of the parts that there are thousands of, none can be part of a cycle, so the garbage collector does not look at them.
A `Progress` belongs to one fold, which changes it in place: to copy a thousand steps at each of a thousand events
would take a million copies.

    state      what is known of a run
    fold       which event changes what
    requests   events about a request
    steps      events about a step, a signal, a timer or a child
    waits      what a paused run waits for, and what of that has come
    commits    what is committed by its own event
"""

from eventlog.progress.fold import advance, fold_stream, is_workflow
from eventlog.progress.state import ENDED, Child, Progress, Step, Stored, Timer, as_of_now, request_of, requests_of

__all__ = [
    "ENDED",
    "Child",
    "Progress",
    "Step",
    "Stored",
    "Timer",
    "advance",
    "as_of_now",
    "fold_stream",
    "is_workflow",
    "request_of",
    "requests_of",
]
