"""What an action is called with, and its own check in front of any intent."""

from __future__ import annotations

import inspect
from copy import deepcopy
from typing import Any

from eventlog.errors import ActionFailed
from eventlog.log import RunLog, TransactionalLog
from eventlog.proposal import stored_proposal
from eventlog.run import Run
from eventlog.runtime.attempts import AnyAction, described
from eventlog.runtime.effect_events import Doing, Undoing
from eventlog.runtime.effects import Call, Promise
from eventlog.runtime.failpoints import Reach
from eventlog.runtime.foreign import ends_program
from eventlog.runtime.run_streams import printable

__all__ = ["call_of", "failed_check"]


def call_of(run: Run, effect: Doing | Undoing, log: RunLog, reach: Reach, attempt: int) -> Call:
    """Return a call whose arguments are decoded afresh from what was approved: an action may change them."""
    assert run.proposal is not None, "what is approved has a proposal"
    args: Any = stored_proposal(run.proposal.canonical).args
    if isinstance(effect, Undoing):
        args = {"args": args, "result": deepcopy(run.result)}
    return Call(
        run_id=run.run_id,
        action=effect.action,
        args=args,
        output=run.proposal.output,
        op_key=effect.op_key,
        folder=run.folder,
        place=log.place,
        attempt=attempt,
        reach=reach,
    )


def failed_check(log: RunLog, action: AnyAction, call: Call) -> ActionFailed | None:
    """Return why the action refuses the call, if it does."""
    if Promise(action.promise) is Promise.TRANSACTIONAL and not isinstance(log, TransactionalLog):
        message = f"the action {call.action!r} writes in the log's own database, and this log has none"
        return ActionFailed("transaction_unsupported", message, run_id=call.run_id)
    try:
        answer: object = action.check(call)
        if answer is not None:
            if inspect.iscoroutine(answer):
                answer.close()
            why = f"it returned a {type(answer).__name__}; it refuses by raising ActionFailed, and waits for nothing"
            return ActionFailed("action_failed", f"the action's own check failed: {why}", run_id=call.run_id)
    except ActionFailed as error:
        code, why = printable(str(error.code)), described(error, named=False)
        return ActionFailed(code, why, **{**error.details, "run_id": call.run_id})
    except BaseException as error:
        if ends_program(error):
            raise
        why = described(error)
        return ActionFailed("action_failed", f"the action's own check failed: {why}", run_id=call.run_id)
    return None
