"""A log that agents can stand on.

Every state transition of an agent's run is appended as an immutable event, the state of a run is a fold over its
events, and resuming a run is replaying them and checking frozen hashes. `README.md` begins at the beginning;
`eventlog.log` is the contract of a log, `eventlog.run` the state of a run, `eventlog.errors` everything that can go
wrong.

Names are loaded when they are first used, so that `import eventlog` is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eventlog.audit.erasure import erase, erase_subject
    from eventlog.audit.heads import LocalSigner, RemoteSigner
    from eventlog.codec import Registry, event, retire, split
    from eventlog.errors import (
        ActionConflict,
        ActionFailed,
        ApprovalExpired,
        ApprovalRejected,
        ClaimLost,
        CommitOutcomeUnknown,
        Conflict,
        EventLogError,
        EventTypeUnknown,
        InvalidInput,
        LogCorrupt,
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
    from eventlog.ids import new_event_id
    from eventlog.log import (
        Append,
        AppendResult,
        CaughtUp,
        CursorMoved,
        EventLog,
        EventReader,
        Expect,
        FellBehind,
        Head,
        Health,
        NewEvent,
        RecordedEvent,
        Retired,
        StreamSlice,
        fold,
    )
    from eventlog.plain import Limits
    from eventlog.proposal import Proposal, propose
    from eventlog.run import Run, Status
    from eventlog.runtime.actions.function import action
    from eventlog.runtime.actions.http_request import HttpRequest
    from eventlog.runtime.actions.row import InsertRow, RecordRow
    from eventlog.runtime.actions.secrets import secret_ref
    from eventlog.runtime.actions.write_file import WriteFile
    from eventlog.runtime.context import RunContext
    from eventlog.runtime.definitions import Workflow, workflow
    from eventlog.runtime.drive import Suspended
    from eventlog.runtime.effects import (
        Absent,
        Action,
        Call,
        Conflicted,
        Executed,
        Inconclusive,
        Promise,
        Recovered,
        TransactionalAction,
    )
    from eventlog.runtime.policies import Policy
    from eventlog.runtime.retries import Retry
    from eventlog.runtime.runner import Outcome, Runner
    from eventlog.runtime.worker import Worker
    from eventlog.scanning import Scanner
    from eventlog.stores import open
    from eventlog.stores.subject_keys import SubjectKeys

__version__ = "0.1.0"

_HOME = {
    "eventlog.audit.erasure": ("erase", "erase_subject"),
    "eventlog.audit.heads": ("LocalSigner", "RemoteSigner"),
    "eventlog.codec": ("Registry", "event", "retire", "split"),
    "eventlog.errors": (
        "ActionConflict",
        "ActionFailed",
        "ApprovalExpired",
        "ApprovalRejected",
        "ClaimLost",
        "CommitOutcomeUnknown",
        "Conflict",
        "EventLogError",
        "EventTypeUnknown",
        "InvalidInput",
        "LogCorrupt",
        "Misuse",
        "OutcomeUnknown",
        "Refused",
        "RunConflict",
        "StepFailed",
        "StoreBusy",
        "StoreUnavailable",
        "WaitTimedOut",
        "WrongExpectedVersion",
    ),
    "eventlog.ids": ("new_event_id",),
    "eventlog.log": (
        "Append",
        "AppendResult",
        "CaughtUp",
        "CursorMoved",
        "EventLog",
        "EventReader",
        "Expect",
        "FellBehind",
        "Head",
        "Health",
        "NewEvent",
        "RecordedEvent",
        "Retired",
        "StreamSlice",
        "fold",
    ),
    "eventlog.plain": ("Limits",),
    "eventlog.proposal": ("Proposal", "propose"),
    "eventlog.run": ("Run", "Status"),
    "eventlog.runtime.actions.function": ("action",),
    "eventlog.runtime.actions.http_request": ("HttpRequest",),
    "eventlog.runtime.actions.row": ("InsertRow", "RecordRow"),
    "eventlog.runtime.actions.secrets": ("secret_ref",),
    "eventlog.runtime.actions.write_file": ("WriteFile",),
    "eventlog.runtime.context": ("RunContext",),
    "eventlog.runtime.definitions": ("Workflow", "workflow"),
    "eventlog.runtime.drive": ("Suspended",),
    "eventlog.runtime.effects": (
        "Absent",
        "Action",
        "Call",
        "Conflicted",
        "Executed",
        "Inconclusive",
        "Promise",
        "Recovered",
        "TransactionalAction",
    ),
    "eventlog.runtime.policies": ("Policy",),
    "eventlog.runtime.retries": ("Retry",),
    "eventlog.runtime.runner": ("Outcome", "Runner"),
    "eventlog.runtime.worker": ("Worker",),
    "eventlog.scanning": ("Scanner",),
    "eventlog.stores": ("open",),
    "eventlog.stores.subject_keys": ("SubjectKeys",),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Absent",
    "Action",
    "ActionConflict",
    "ActionFailed",
    "Append",
    "AppendResult",
    "ApprovalExpired",
    "ApprovalRejected",
    "Call",
    "CaughtUp",
    "ClaimLost",
    "CommitOutcomeUnknown",
    "Conflict",
    "Conflicted",
    "CursorMoved",
    "EventLog",
    "EventLogError",
    "EventReader",
    "EventTypeUnknown",
    "Executed",
    "Expect",
    "FellBehind",
    "Head",
    "Health",
    "HttpRequest",
    "Inconclusive",
    "InsertRow",
    "InvalidInput",
    "Limits",
    "LocalSigner",
    "LogCorrupt",
    "Misuse",
    "NewEvent",
    "Outcome",
    "OutcomeUnknown",
    "Policy",
    "Promise",
    "Proposal",
    "RecordRow",
    "RecordedEvent",
    "Recovered",
    "Refused",
    "Registry",
    "RemoteSigner",
    "Retired",
    "Retry",
    "Run",
    "RunConflict",
    "RunContext",
    "Runner",
    "Scanner",
    "Status",
    "StepFailed",
    "StoreBusy",
    "StoreUnavailable",
    "StreamSlice",
    "SubjectKeys",
    "Suspended",
    "TransactionalAction",
    "WaitTimedOut",
    "Worker",
    "Workflow",
    "WriteFile",
    "WrongExpectedVersion",
    "__version__",
    "action",
    "erase",
    "erase_subject",
    "event",
    "fold",
    "new_event_id",
    "open",
    "propose",
    "retire",
    "secret_ref",
    "split",
    "workflow",
]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'eventlog' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
