"""Everything that can go wrong, in one tree.

    EventLogError
    ├── Refused              the domain says no; nothing was done, and the refusal is in the log
    │   ├── ActionConflict   the target already holds something else
    │   ├── ActionFailed     the effect definitely did not happen
    │   ├── ApprovalExpired  nobody decided in time
    │   ├── ApprovalRejected a person said no
    │   ├── OutcomeUnknown   the effect may or may not have happened
    │   ├── StepFailed       a step of a workflow failed for good
    │   ├── WaitTimedOut     what a workflow waited for did not come in time
    │   └── EventTypeUnknown a run holds an event of a newer program; that run is read-only here
    ├── Conflict             somebody was first: read again, decide again
    │   ├── WrongExpectedVersion
    │   ├── AppendTooLate
    │   ├── RunConflict
    │   └── ClaimLost
    ├── LogCorrupt           damage: stop and investigate
    ├── MirrorBehind         the log has the events, a mirror beside it does not have them yet
    ├── MirrorDamaged        a mirror holds what the log does not
    ├── StoreUnavailable     the store cannot take or give data now
    │   ├── StoreBusy
    │   └── CommitOutcomeUnknown
    ├── InvalidInput         the value cannot be stored exactly; says where
    └── Misuse               the engine was called in a way it forbids

Every error has a `code` (stable, printed by the command line), a `hint` (what to do next) and `details` (facts as plain
data). `CODES` explains every code; an error cannot be made with a code that is not explained there.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

__all__ = [
    "CODES",
    "ActionConflict",
    "ActionFailed",
    "AppendTooLate",
    "ApprovalExpired",
    "ApprovalRejected",
    "ClaimLost",
    "CommitOutcomeUnknown",
    "Conflict",
    "EventLogError",
    "EventTypeUnknown",
    "Explanation",
    "InvalidInput",
    "LogCorrupt",
    "MirrorBehind",
    "MirrorDamaged",
    "Misuse",
    "OutcomeUnknown",
    "Refused",
    "RunConflict",
    "StepFailed",
    "StoreBusy",
    "StoreUnavailable",
    "WaitTimedOut",
    "WrongExpectedVersion",
    "code_of_os_error",
]


class Explanation(NamedTuple):
    """What a code means, and what its reader should do."""

    meaning: str
    hint: str


CODES: Final[Mapping[str, Explanation]] = {
    # ── refusals of a run ────────────────────────────────────────────────────────────────────────────────────────────
    "unknown_run": Explanation("No run has this id in this log.", "List the runs with `eventlog runs list`."),
    "run_exists": Explanation(
        "A run with this id exists; an id is used once, even after a rejection.", "Choose another run id."
    ),
    "approval_required": Explanation(
        "Nobody has approved the proposal yet, so nothing may run.",
        "Approve it with the proposal hash that `eventlog approvals show RUN` prints.",
    ),
    "approval_rejected": Explanation(
        "A person rejected the proposal; a rejection is final.", "Start another run with another proposal."
    ),
    "approval_not_pending": Explanation(
        "The request has been decided already; the first decision stands.",
        "See the recorded decision with `eventlog runs show RUN`.",
    ),
    "proposal_hash_mismatch": Explanation(
        "The action, its arguments or its target are not the ones that were named by this hash.",
        "Read the current proposal, and decide on exactly that one.",
    ),
    "approval_expired": Explanation(
        "Nobody decided in time. That is no rejection: nobody said anything.",
        "Start another run, if it is still wanted.",
    ),
    "approval_spent": Explanation(
        "The effect has begun under this approval, so it cannot be withdrawn any more.",
        "See what became of it with `eventlog runs show RUN`.",
    ),
    "step_failed": Explanation(
        "A step of the workflow raised, as often as it may be tried; the workflow did not go on behind it.",
        "Read why with `eventlog runs show RUN`; clear the cause and resume: only what failed is tried again.",
    ),
    "workflow_failed": Explanation(
        "The workflow's own code raised, outside of any step.",
        "Read why with `eventlog runs show RUN`; correct the code and resume.",
    ),
    "wait_timed_out": Explanation(
        "What the workflow waited for did not come in time.", "The workflow decides what that means; it may handle it."
    ),
    "unknown_workflow": Explanation(
        "The run follows a workflow that is not registered here; nothing was run.",
        "Resume it in the program that has the workflow, or name it with --app.",
    ),
    "cannot_signal": Explanation(
        "The run has ended, or is no workflow, and takes no signal.", "See its state with `eventlog runs show RUN`."
    ),
    "definition_mismatch": Explanation(
        "The code of the workflow, or of an action that was approved with a signature, has changed; nothing was run.",
        "Run the earlier code. A workflow may say that it `continues` it; a changed action has to be approved anew.",
    ),
    "nondeterministic_replay": Explanation(
        "Replayed, the workflow asks for something else than its log holds; nothing new was run.",
        "Let everything that may differ between two executions be a step, and resume.",
    ),
    "nested_step": Explanation(
        "A step asked its own run for another step; only the workflow may.",
        "Call it from the workflow, and hand its result to the step.",
    ),
    "never_awaited": Explanation(
        "The workflow ended though it had never awaited something that it asked its run for; that was not done.",
        "Await everything that the run is asked for; correct the code and resume.",
    ),
    "already_voted": Explanation(
        "This actor has decided on the request already; the policy asks for several people.",
        "Let somebody else decide, or withdraw the approvals with `eventlog approvals revoke RUN`.",
    ),
    "role_required": Explanation(
        "The policy of the request asks for an approver with a role that was not brought, or not one of his key's.",
        "Let somebody approve who has one of the roles; `eventlog keys enroll --role` names those of a key.",
    ),
    "separation_of_duties": Explanation(
        "The policy of the request does not let its proposer approve it.", "Let somebody else approve it."
    ),
    "level_required": Explanation(
        "The policy of the request takes only approvals of a higher level, as one that is signed with an enrolled key.",
        "Sign it: `eventlog approve RUN --sign KEY`, or `eventlog approvals statement RUN` and your SSH key.",
    ),
    "statement_invalid": Explanation(
        "This is no approval statement, or not in the one spelling that it has; nobody can say what was signed.",
        "Make one with `eventlog approvals statement RUN`, and sign exactly those bytes.",
    ),
    "signature_invalid": Explanation(
        "The signature is not one of the named key over exactly this statement.",
        "Make a new statement and sign that; with SSH in the namespace `eventlog-approval@v1`.",
    ),
    "statement_mismatch": Explanation(
        "What was signed is about something else than what the log holds; `field` in the details says where.",
        "Read the request again, make a new statement, and sign that.",
    ),
    "statement_expired": Explanation(
        "The time until which the signed statement counts is over.",
        "Make a new statement and sign that; if the run is APPROVED, `eventlog approvals revoke RUN` first.",
    ),
    "nonce_used": Explanation(
        "This signed statement was recorded before; each counts once.",
        "See the recorded decision with `eventlog runs show RUN`; for another make a new statement.",
    ),
    "head_mismatch": Explanation(
        "The head that was signed is none that this log has had, or is older than what was approved.",
        "Find out which log the approver was shown: this one may have been rewritten. `eventlog verify` says more.",
    ),
    "approver_unknown": Explanation(
        "The key is not enrolled in this log as one of an approver.",
        "Enrol it with `eventlog keys enroll`; `eventlog keys list` shows those that are.",
    ),
    "approver_revoked": Explanation(
        "The key was revoked; nothing that it signs counts any more.",
        "Sign with another key that is enrolled; if the run is APPROVED, `eventlog approvals revoke RUN` first.",
    ),
    "approver_unpinned": Explanation(
        "The log enrols a key for an approver that is not the one you pinned, or one that you pinned as another's.",
        "Ask the person: pin the key too (--approver) if it is right; otherwise somebody signs in another's name.",
    ),
    "approver_key_taken": Explanation(
        "The key is, or was, enrolled in this log already; a key stands for one approver, once.",
        "Make a key of its own for each approver, and enrol that.",
    ),
    "request_ambiguous": Explanation(
        "The run has several requests, and it was not said which one is meant.",
        "Name one of those in the details with --request.",
    ),
    "unknown_request": Explanation(
        "The run has no request of this id.", "See its requests with `eventlog runs show RUN`."
    ),
    "cannot_revoke": Explanation(
        "The request has no approval that could be withdrawn.", "See its state with `eventlog runs show RUN`."
    ),
    "cannot_cancel": Explanation(
        "The run has ended, or nobody knows what became of its effect.",
        "See its state with `eventlog runs show RUN`; an unknown outcome is settled with `eventlog reconcile RUN`.",
    ),
    "approval_request_mismatch": Explanation(
        "The approval answers another request than the current one.",
        "Compare the view with the log: `eventlog verify` names the run.",
    ),
    "output_mismatch": Explanation(
        "The target given now is not the one that was approved.", "Leave --output away, or give the approved target."
    ),
    "view_mismatch": Explanation(
        "The stored view of this run differs from its log, so people may have seen something else.",
        "Find out who edited the view. `eventlog projections check runs` shows it, `… rebuild runs` mends it.",
    ),
    "output_conflict": Explanation(
        "The target exists and holds something else; it was not touched.",
        "Compare both contents, move the other file away, and resume.",
    ),
    "invalid_decision": Explanation("A decision is `approve` or `reject`.", "Use one of the two words."),
    "cannot_resume": Explanation(
        "A run in this status cannot be resumed.", "See its state with `eventlog runs show RUN`."
    ),
    "unknown_action": Explanation(
        "No action of this name is registered here, so the effect was not attempted.",
        "Resume in a program that registers the action with its Runner.",
    ),
    "unknown_subject": Explanation(
        "No body was ever encrypted for this subject here, so there is no key of it.",
        "Check its spelling, the purpose, and the folder of the keys.",
    ),
    "subject_erased": Explanation(
        "The key of this subject was destroyed, and with it what was encrypted under it; the subject gets no other.",
        "Write about somebody who comes back under another opaque name.",
    ),
    "event_type_unknown": Explanation(
        "The run holds an event that this version of the program does not know; it is read-only here.",
        "Use the newer version that wrote it.",
    ),
    # ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────
    "outcome_unknown": Explanation(
        "An earlier attempt may or may not have happened, and nobody can tell automatically.",
        "Look at the target, and settle it with `eventlog reconcile RUN`; nothing is retried by itself.",
    ),
    "outcome_not_unknown": Explanation(
        "Only a run whose outcome is unknown can be reconciled.", "See its state with `eventlog runs show RUN`."
    ),
    "idempotency_conflict": Explanation(
        "The receiver says that it knows this op_key with another payload, so what was done under it is unknown.",
        "Look at the receiver, and settle it with `eventlog reconcile RUN`.",
    ),
    "verdict_contradicted": Explanation(
        "The log holds the report of a resumer that came late: its effect happened. `not_executed` would do it again.",
        "Read the report with `eventlog runs show RUN`, and give the verdict `executed`.",
    ),
    "verdict_stale": Explanation(
        "When you looked it was not recorded yet that the last attempt is over, so it may have happened since.",
        "Read `eventlog approvals show RUN` again, look at the receiver again, and name the version that you read.",
    ),
    "invalid_verdict": Explanation(
        "A verdict is `executed`, `not_executed` or `abandoned`.", "Use one of the three words."
    ),
    "cannot_compensate": Explanation(
        "The run has no executed effect that its action can undo.", "See its state with `eventlog runs show RUN`."
    ),
    "transaction_unsupported": Explanation(
        "This log has no database of its own in which an effect could be recorded.", "Use a log in an SQLite file."
    ),
    "action_failed": Explanation(
        "The effect definitely did not happen; the run stays approved.", "Clear the cause and resume."
    ),
    "lease_used_up": Explanation(
        "The process stood still between the intent and the effect; nothing was done.",
        "Resume; a workflow tries a few times by itself. If it happens often, give the runner a longer lease.",
    ),
    "path_not_allowed": Explanation(
        "The target is outside the folder this action may write to, or is no path at all.",
        "Choose a target below the action's root.",
    ),
    "target_not_regular": Explanation(
        "The target exists and is not a regular file; it was not opened or followed.",
        "Move it away and resume, or propose another target.",
    ),
    "atomic_create_unsupported": Explanation(
        "The target's file system can neither link nor rename without replacing, so no safe creation is possible.",
        "Use a local file system.",
    ),
    "invalid_arguments": Explanation(
        "The approved arguments are not what the action takes.", "Propose again with the arguments the action names."
    ),
    "url_not_allowed": Explanation(
        "The URL is outside what this action may send to, or could be read in two ways; nothing was sent.",
        "Propose a URL at or below one that the action allows.",
    ),
    "redirect_refused": Explanation(
        "The receiver wants the request to be made at another URL, and the action may not follow there.",
        "Check where it leads, and propose that URL in another run.",
    ),
    "request_refused": Explanation(
        "The receiver answered that it refuses the request; it did nothing.",
        "Read its answer in the details; clear the cause and resume, or start another run if it is final.",
    ),
    "secret_unknown": Explanation(
        "The secret that the proposal names is not known to this program, or is no text; nothing was sent.",
        "Give the action a secret of that name, and resume.",
    ),
    "secret_changed": Explanation(
        "The secret of this name is another one than the proposal was made with; nothing was sent.",
        "Give the action the secret that was meant, or propose again with today's.",
    ),
    "target_not_keyed": Explanation(
        "The table cannot refuse a second row: it has no unique index on the op_key alone, or it changes the row.",
        "Give the key column a unique index of its own, let no trigger change the row, and resume.",
    ),
    # ── conflicts: read again, decide again ──────────────────────────────────────────────────────────────────────────
    "version_conflict": Explanation(
        "The stream is not at the version the append expected; nothing was written.",
        "Read the stream again, decide again, append again.",
    ),
    "append_too_late": Explanation(
        "What was to be recorded counts up to a time, and would have been recorded later; nothing was written.",
        "Decide again as of now: time of the log never runs back, also where a clock was set back.",
    ),
    "run_conflict": Explanation(
        "Another process is working on this run, or was first; nothing was done.", "Try again in a moment."
    ),
    "claim_lost": Explanation(
        "This run was taken over by another process while this one was working on it.",
        "Read the run's trace; its new holder records the outcome.",
    ),
    # ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────
    "log_corrupt": Explanation(
        "Stored data contradicts its own hashes, numbers or links; it is not served as truth.",
        "Stop, keep a copy of the files, and run `eventlog verify`.",
    ),
    # ── signatures and heads ─────────────────────────────────────────────────────────────────────────────────────────
    "bad_note": Explanation(
        "A signed note, or the head in one, is not spelled as it has to be.",
        "Get it again from where it came; nothing in it was believed.",
    ),
    "unverified_note": Explanation(
        "A note has no signature of a key that is known here, or a wrong one of such a key.",
        "Compare the verifier keys; a wrong signature of the right key means that the note was changed.",
    ),
    "bad_verifier_key": Explanation(
        "A text is no verifier key, or the name in it cannot be that of a key.",
        "Copy the key whole: `<name>+<8 hex digits>+<base64>`, as `eventlog keys list` prints it.",
    ),
    "weak_key": Explanation(
        "A public key is one under which others than its holder can sign, or no key at all.",
        "Make a new key pair with `eventlog keys new` or `ssh-keygen -t ed25519`.",
    ),
    "key_unusable": Explanation(
        "A file holds no private Ed25519 key that can be read here.",
        "Check the path; make a key with `eventlog keys new --to FILE`.",
    ),
    "wrapping_key_unusable": Explanation(
        "The key that wraps the keys of subjects is missing, is not 32 bytes, or is not the one of this folder.",
        "Give the wrapping key with which the folder was made; without it nobody can read what it protects.",
    ),
    "key_exposed": Explanation(
        "Other users can read the file of a private key, so it was not used.",
        "Find out who may have read it; take their access away (`chmod 600`, a folder `chmod 700`), or make a new key.",
    ),
    "bad_request": Explanation(
        "A request to a signer or a witness is not spelled as it has to be.", "Ask as c2sp.org/tlog-witness says."
    ),
    "head_file_damaged": Explanation(
        "The file of a signer's heads holds what it has not written, or was shortened; nothing was signed.",
        "Find out who edited it, and put back a copy that was made after the newest head.",
    ),
    "head_refused": Explanation(
        "The signer will not sign this head: it does not go on from the last one that it signed.",
        "If an older copy of the log was put back on purpose, declare that as a restore; else find the right log.",
    ),
    "head_stale": Explanation(
        "The signer has signed another head meanwhile.", "Ask it again, with a proof from the size in the details."
    ),
    "head_unreadable": Explanation(
        "No head can be read from where one was said to be kept, so the log was not compared with it.",
        "Check the path: a signed note, or the file of heads that a signer keeps beside its key.",
    ),
    "no_trusted_head": Explanation(
        "Only what is newer than a trusted head was asked for, and no head of this log can be trusted.",
        "Give the key that signs its heads (--log-key), or a head that was kept outside (--head).",
    ),
    "signer_unavailable": Explanation(
        "The signer of heads cannot be asked, or cannot keep what it signs; nothing was signed.",
        "See that it runs, and that its socket and its folder can be used; then try again.",
    ),
    # ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────
    "store_busy": Explanation(
        "Another process holds the write lock, or the queue is full; nothing was written.", "Try again in a moment."
    ),
    "store_full": Explanation("The disk is full; nothing was written.", "Free some space and try again."),
    "store_io_error": Explanation(
        "The operating system reported an I/O error; nothing was written.", "Check the disk, then try again."
    ),
    "store_out_of_memory": Explanation(
        "There is not enough memory for what was asked; nothing was written.",
        "Free memory, or append and read less at a time.",
    ),
    "store_readonly": Explanation("The log is open for reading only.", "Open it with write access."),
    "store_cannot_open": Explanation(
        "The log's files cannot be opened, created or locked.", "Check the path, its permissions and the file system."
    ),
    "store_not_found": Explanation("There is no log at this path.", "Check the path; `eventlog start` creates a log."),
    "store_not_eventlog": Explanation(
        "The file is an SQLite database of another program, or no database; it was left untouched.",
        "Choose another path.",
    ),
    "store_identity_changed": Explanation(
        "The database file or its write-ahead log was replaced or removed while the log was open.",
        "Find out who moves the files; then open the log in a new process and retry by event id.",
    ),
    "commit_outcome_unknown": Explanation(
        "The commit failed in a way that leaves open whether the events are in the log.",
        "Append the same events again with the same ids: they are stored at most once.",
    ),
    "wal_unavailable": Explanation(
        "SQLite cannot use a write-ahead log here, which a network file system often refuses.",
        "Keep the log on a local disk.",
    ),
    "sqlite_too_old": Explanation("This SQLite library is too old for the log.", "Use SQLite 3.37.0 or newer."),
    "schema_too_new": Explanation(
        "The log was written by a newer version of this program; it was left untouched.", "Upgrade the program."
    ),
    "migration_required": Explanation(
        "The log has an older format and is open for reading only.", "Run `eventlog db migrate` once."
    ),
    "view_failed": Explanation(
        "A projection raised while it wrote its view; the view stays at the position before that event.",
        "Correct it; `eventlog projections status` names the command that goes on: `resume`, or `rebuild` of a build.",
    ),
    "store_rolled_back": Explanation(
        "The log ends before what a signer, a view or a consumer has seen of it: an older copy was put here.",
        "Put the right log back; if this one is right, `eventlog db restored`, or rebuild the view that is ahead.",
    ),
    "store_forked": Explanation(
        "The log is not the one of which a head was signed last: its history differs, or another file stands here.",
        "Put the right log back; if this one is right, declare it: `eventlog db restored --reason TEXT`.",
    ),
    "restore_not_needed": Explanation(
        "The log goes on from the last head that was signed: nothing shows that an older copy stands here.",
        "If one does all the same, declare it with `--force`; a restore stays in the log for ever.",
    ),
    "head_not_signed": Explanation(
        "No head could be signed in front of an effect, so it was not performed.",
        "See that the signer can be reached and is of this log, and resume the run.",
    ),
    "approval_lost": Explanation(
        "An earlier attempt did nothing, and no other begins: the approvals of the request do not count any more.",
        "Cancel the run, and ask for the effect in another one, which is approved anew.",
    ),
    "approval_before_restore": Explanation(
        "It was approved, and then the log was put back from a copy; the effect may have happened in the lost part.",
        "Find out. If it did not: `eventlog approvals revoke RUN`, approve anew; else, or if spent, cancel the run.",
    ),
    "intent_erased": Explanation(
        "An effect began although its proposal, or an approval that it rests on, had been erased before.",
        "Find out who writes to the log, and ask the receiver what happened; keep the log as it is.",
    ),
    "intent_unapproved": Explanation(
        "An effect began although too few had approved it by then: the engine that does this is not this one.",
        "Find out who writes to the log, and ask the receiver what happened; keep the log as it is.",
    ),
    "intent_mismatch": Explanation(
        "An effect began that names another proposal, or another op_key, than the one that was approved.",
        "Find out who writes to the log, and ask the receiver what happened; keep the log as it is.",
    ),
    "effect_without_intent": Explanation(
        "The log says that something was done, and no intent in front of it says that it began.",
        "Find out who writes to the log, and ask the receiver what happened; keep the log as it is.",
    ),
    "no_signed_head": Explanation(
        "No signed head covers the run, so that a pack of it could prove nothing.",
        "Give the log a key (`eventlog keys new`), and export again with `--signer`.",
    ),
    "subject_key_missing": Explanation(
        "The stream is encrypted under the key of its subject, and this program was not given that key.",
        "Name the folder of the keys with `--subject-keys FOLDER`; in a copy from before an erasure, erase again.",
    ),
    "run_open": Explanation(
        "The run has not ended, and goes on from what is in its events; nothing of it was erased.",
        "Let it end, or end it with `eventlog runs cancel RUN`; then erase again.",
    ),
    "run_erased": Explanation(
        "Words of the run are erased, or cannot be read here, so that it cannot go on from what its steps returned.",
        "Start another run. If only the key is missing, name the keys with `--subject-keys FOLDER`.",
    ),
    "view_unknown_here": Explanation(
        "The database has a view that this program cannot build again, and which may hold what is erased.",
        "Name its projection with --projections MODULE:NAME, or let it be dropped with --drop-unknown-views.",
    ),
    "erasure_unsupported": Explanation(
        "The log is in memory, or has a mirror beside it that would keep what is erased.",
        "Erase in the log itself; then remove the transcripts of those streams, and `repair(log)` writes them again.",
    ),
    "not_erasable": Explanation(
        "The event is about the log itself, and every proof rests on it; it names nobody.",
        "Erase the events of the runs or streams that are meant.",
    ),
    "consumer_failed": Explanation(
        "A consumer raised while it handled an event; it stands in front of that event, and nothing of it was kept.",
        "Correct the consumer and start it again; it goes on where it stopped.",
    ),
    "consumer_overtaken": Explanation(
        "Another process handles this consumer's events.", "Stop one of the two: a consumer runs once."
    ),
    "view_overtaken": Explanation(
        "Somebody else writes this view: another process, or a later program with a higher revision.",
        "Compare the revisions in `eventlog projections status`; upgrade this program, or stop one of two equals.",
    ),
    "result_unfinished": Explanation(
        "A function that was run on a connection of the log gave back something that has not ended.",
        "Fetch the rows inside the function, and make it a plain one, not `async def`.",
    ),
    "runner_not_entered": Explanation(
        "A runner of projections was asked for something before it was entered.",
        "Use it as `async with ProjectionRunner(…) as runner`.",
    ),
    "view_name_taken": Explanation(
        "Something else in the database has the name of the view; it was left as it is.",
        "Give the projection another name, or rename what has this one.",
    ),
    "view_busy": Explanation(
        "Another process is building this view at the moment.",
        "Wait for it: `eventlog projections status` shows how far it is.",
    ),
    "view_outdated": Explanation(
        "The view was folded by an earlier revision of its projection, so this program cannot go on with its rows.",
        "Build it again: `eventlog projections rebuild NAME`.",
    ),
    "unknown_view": Explanation(
        "No projection of this name is known here.",
        "`eventlog projections list` shows those that are; name your own with --projections MODULE:NAME.",
    ),
    "view_of_another_log": Explanation(
        "The database of views belongs to another log.", "Give each log a database of views of its own."
    ),
    "view_late": Explanation(
        "The view, or the consumer, did not reach the position in time.",
        "Wait longer; its runner or `Consumer.run` has to run. `eventlog projections status` shows what stopped it.",
    ),
    "mirror_unavailable": Explanation(
        "A mirror of the log cannot be written; the append was refused before the log was touched.",
        "Clear what the message names (folder, permissions, space), and append again.",
    ),
    "mirror_behind": Explanation(
        "The events are stored in the log; a mirror beside it could not be written behind that.",
        "Clear the cause: the next append or start brings the mirror up, and repeating the append is safe.",
    ),
    "mirror_ahead": Explanation(
        "A mirror goes further than its log; it was left as it is. An older log may have been put in its place.",
        "Find out which log is the right one; build the mirror again with `repair(log, force=True)`.",
    ),
    "mirror_damaged": Explanation(
        "A mirror holds something else than its log, or is the mirror of another log; it was left as it is.",
        "Find out who edited it; build it again from the log with `repair(log, force=True)`.",
    ),
    # ── input that cannot be stored exactly ──────────────────────────────────────────────────────────────────────────
    "invalid_id": Explanation(
        "An id is empty, too long, or holds control characters.", "Use 1 to 512 bytes of printable text."
    ),
    "invalid_text": Explanation(
        "A text holds a lone surrogate, or bytes that are not UTF-8.", "Decode the text properly before storing it."
    ),
    "invalid_json": Explanation("The text is not JSON.", "Correct the JSON text."),
    "event_type_conflict": Explanation(
        "Two declarations of event types contradict one another: a stored name belongs to one current type.",
        "Give each type a name of its own, and list former names, splits and retired types once.",
    ),
    "event_type_former": Explanation(
        "The event type was renamed, split or retired; events under its name are read, and no more are written.",
        "Write the event as one of the types that the details name.",
    ),
    "schema_version_old": Explanation(
        "The event's type has a newer schema version here; old shapes are read, and no more are written.",
        "Give the registered Struct, or plain data in today's shape with `schema_version` set to today's.",
    ),
    "invalid_event": Explanation("The event does not have the shape that its type names.", "Correct the event."),
    "invalid_argument": Explanation("An argument has a value that is not allowed.", "Correct the argument."),
    "non_finite_number": Explanation("JSON has no NaN and no infinity.", "Store a finite number, null, or a text."),
    "number_too_large": Explanation(
        "A number is too large to be stored or compared exactly.",
        "In a proposal keep integers below 2**53; write larger ones as text.",
    ),
    "duplicate_key": Explanation("A JSON object names a key twice.", "Keep one of the two."),
    "non_string_key": Explanation("A key of a mapping is not a text.", "Use text keys."),
    "unsupported_type": Explanation(
        "A value is not plain data and no registered type names it.",
        "Use dict, list, str, int, float, bool or None, or register a Struct for the event.",
    ),
    "secret_found": Explanation(
        "What was to be appended holds something that looks like a secret; the log could never be rid of it.",
        "Name it with `secret_ref`. One that is in an older event has to be replaced: erasing it comes too late.",
    ),
    "secret_scan_failed": Explanation(
        "The scanner for secrets raised, so nobody has looked at what was to be appended; nothing was written.",
        "Correct the scanner that was given to `eventlog.open`.",
    ),
    "payload_too_deep": Explanation("The data is nested too deeply.", "Flatten it, or store it outside."),
    "payload_too_large": Explanation(
        "The data is larger than the configured limit.", "Store it outside and log its hash."
    ),
    "batch_too_large": Explanation("The call appends more events than the configured limit.", "Split the call."),
    # ── misuse ───────────────────────────────────────────────────────────────────────────────────────────────────────
    "reserved_stream": Explanation(
        "Streams that begin with `run:` or `$` are written by the engine only.", "Choose another stream name."
    ),
    "event_id_conflict": Explanation(
        "An event id is in use for another event, or only a part of the call is already stored.",
        "Make new ids for new events; repeat a call with all of its events, unchanged.",
    ),
    "engine_closed": Explanation("The log is closed.", "Open it again."),
    "fork_detected": Explanation(
        "The log was opened before fork(); a child process must not use its parent's log.", "Open the log in the child."
    ),
    "wrong_loop": Explanation("The log belongs to another event loop or thread.", "Open one log for each event loop."),
    "missing_extra": Explanation("An optional part is not installed.", "Install the extra that the message names."),
    "target_exists": Explanation(
        "There is something at the path that a command was to write; it was not touched.",
        "Choose another path; commands that have --force replace the file with it.",
    ),
    "app_unusable": Explanation(
        "What --app names cannot be used: its module cannot be imported, the name is not in it, or gives no Runner.",
        "Give --app MODULE:RUNNER, a function that takes the log and returns a Runner; MODULE alone for event types.",
    ),
    "projections_unusable": Explanation(
        "What --projections names gives no projections: it cannot be imported or called, or makes something else.",
        "Name a module, and in it a projection, or what gives several: --projections MODULE:NAME.",
    ),
    "still_waiting": Explanation(
        "What was waited for has not come within the time-out; nothing was changed.", "Wait again, or longer."
    ),
    "interrupted": Explanation(
        "The command was interrupted, as with Ctrl-C, before it had ended.",
        "Run it again: what it had done stays, and nothing is half done.",
    ),
    "unexpected": Explanation("A fault of the program itself.", "Please report it with the message and the trace."),
}


class EventLogError(Exception):
    """The root. `str(error)` is one sentence with the facts; `code`, `hint` and `details` are for programs."""

    def __init__(self, code: str, message: str, /, **details: Any) -> None:
        self.code: Final = code
        self.details: Final[dict[str, Any]] = details
        self.hint: Final = self._explanation(code).hint
        super().__init__(message)

    @classmethod
    def _explanation(cls, code: str) -> Explanation:
        return CODES[code]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the facts: an error that a pool of processes cannot hand back would break the pool instead."""
        return _restored, (type(self), self.args, vars(self))


def _restored(cls: type[EventLogError], args: tuple[Any, ...], facts: dict[str, Any]) -> EventLogError:
    error = cls.__new__(cls, *args)
    vars(error).update(facts)
    return error


class Refused(EventLogError):
    """The domain said no. The refusal was appended with its reason before this was raised.

    `label` is what the command line prints: the code, with its subject where the code has one (`unknown_run:run-1`).
    """

    def __init__(self, code: str, message: str, /, *, subject: str | None = None, **details: Any) -> None:
        self.subject: Final = subject
        super().__init__(code, message, **details)

    @property
    def label(self) -> str:
        return self.code if self.subject is None else f"{self.code}:{self.subject}"


class ActionConflict(Refused):
    """The target holds something else than what was approved (`output_conflict`). Nothing was changed."""


class ActionFailed(Refused):
    """The effect definitely did not happen, with proof; the run stays approved unless the failure `is_final`.

    An action may use a code of its own here, as `card_declined`; its hint is then that of `action_failed`. A failure is
    final if no attempt can do better; it is stored, and every later resume gets it again. It `covers_earlier` attempts
    if it proves of them too that they did nothing. Both are taken as `bool` says; what cannot say so is taken as False.
    """

    def __init__(
        self, code: str, message: str, /, *, is_final: bool = False, covers_earlier: bool = False, **details: Any
    ) -> None:
        self.is_final: Final = is_final
        self.covers_earlier: Final = covers_earlier
        super().__init__(code, message, **details)

    @classmethod
    def _explanation(cls, code: str) -> Explanation:
        return CODES.get(code, CODES["action_failed"])


class ApprovalRejected(Refused):
    """A person rejected the request (`approval_rejected`). `actor` did, for the `reason` that he gave, if any."""

    def __init__(self, message: str, /, *, reason: str | None = None, actor: str | None = None, **details: Any) -> None:
        self.reason: Final = reason
        self.actor: Final = actor
        super().__init__("approval_rejected", message, reason=reason, actor=actor, **details)


class ApprovalExpired(Refused):
    """Nobody decided on the request in time (`approval_expired`); that is no "no"."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__("approval_expired", message, **details)


class StepFailed(Refused):
    """A step of a workflow failed for good (`step_failed`), or a run that it started did.

    The same when it happens and on every replay: `error_type` is the name of what the step raised, `attempts` how often
    it was tried, `traceback` where it failed, if the runner keeps that.
    """

    def __init__(
        self,
        message: str,
        /,
        *,
        step: str,
        error_type: str | None = None,
        attempts: int = 1,
        traceback: str | None = None,
        code: str = "step_failed",
        **details: Any,
    ) -> None:
        self.step: Final = step
        self.error_type: Final = error_type
        self.attempts: Final = attempts
        self.traceback: Final = traceback
        super().__init__(code, message, step=step, error_type=error_type, attempts=attempts, **details)

    @classmethod
    def _explanation(cls, code: str) -> Explanation:
        return CODES.get(code, CODES["step_failed"])


class WaitTimedOut(Refused):
    """What a workflow waited for did not come in time (`wait_timed_out`)."""

    def __init__(self, message: str, /, **details: Any) -> None:
        super().__init__("wait_timed_out", message, **details)


class OutcomeUnknown(Refused):
    """An effect has begun and nobody can tell automatically whether it happened (`outcome_unknown`).

    `undoing` is the name of the action, if it is the one that undoes the run's effect.
    """

    def __init__(self, run_id: str, why: str, *, undoing: str | None = None) -> None:
        what = "the effect of" if undoing is None else f"undoing by {undoing!r} the effect of"
        message = f"{what} run {run_id!r} may have happened: {why}"
        super().__init__("outcome_unknown", message, run_id=run_id, why=why, undoing=undoing)


class EventTypeUnknown(Refused):
    """A fold met an event type, or a schema version, that this program does not know (`event_type_unknown`)."""

    def __init__(
        self, stream: str, version: int, type: str, *, found: int | None = None, known: int | None = None
    ) -> None:
        """`found` is the schema version of the event, `known` the highest of its type here, if the type is known."""
        what = f"the unknown type {type!r}"
        if known is not None:
            what = f"the type {type!r} in schema version {found}, and {known} is the highest known here"
        super().__init__(
            "event_type_unknown",
            f"version {version} of stream {stream!r} is an event of {what}",
            stream=stream,
            version=version,
            type=type,
            found=found,
            known=known,
        )


class Conflict(EventLogError):
    """Somebody else was first. Nothing was written; read again and decide again."""


class WrongExpectedVersion(Conflict):
    """The stream is not where the caller thinks it is (`version_conflict`). `actual` is its version, 0 if absent."""

    def __init__(self, stream: str, expected: str, actual: int) -> None:
        self.stream: Final = stream
        self.expected: Final = expected
        self.actual: Final = actual
        super().__init__(
            "version_conflict",
            f"stream {stream!r} was expected {expected} but is at version {actual}",
            stream=stream,
            expected=expected,
            actual=actual,
        )


class AppendTooLate(Conflict):
    """The append would have been recorded at `at_us`, not before `before_us`, as asked for (`append_too_late`)."""

    def __init__(self, at_us: int, before_us: int) -> None:
        self.at_us: Final = at_us
        self.before_us: Final = before_us
        message = f"it would have been recorded at {at_us} µs, and had to be before {before_us} µs"
        super().__init__("append_too_late", message, at_us=at_us, before_us=before_us)


class RunConflict(Conflict):
    """Another resumer holds the run or was first (`run_conflict`). Nothing was done; try again."""

    def __init__(self, run_id: str, why: str) -> None:
        super().__init__("run_conflict", f"run {run_id!r}: {why}", run_id=run_id, why=why)


class ClaimLost(Conflict):
    """A later claim fenced this holder (`claim_lost`); the new holder records the outcome."""

    def __init__(self, run_id: str, epoch: int, held: int) -> None:
        super().__init__(
            "claim_lost",
            f"run {run_id!r} is held under epoch {epoch}, this process held it under epoch {held}",
            run_id=run_id,
            epoch=epoch,
            held=held,
        )


class LogCorrupt(EventLogError):
    """Stored data contradicts itself (`log_corrupt`). `reason` is a word, `position` the first bad event if known."""

    def __init__(
        self, reason: str, message: str, /, *, position: int | None = None, stream: str | None = None, **details: Any
    ) -> None:
        self.reason: Final = reason
        self.position: Final = position
        self.stream: Final = stream
        super().__init__("log_corrupt", message, reason=reason, position=position, stream=stream, **details)


class MirrorBehind(EventLogError):
    """The log has stored the events, and a mirror could not be written behind that (`mirror_behind`).

    No failed append: `results` are what the append has returned, none if there was no append to speak of. `stream` is
    at `version` in the log, None if that is not known, and at `mirrored` in the mirror, likewise.
    """

    def __init__(
        self, stream: str, why: str, *, version: int | None, mirrored: int | None, results: Sequence[Any] = ()
    ) -> None:
        self.stream: Final = stream
        self.version: Final = version
        self.mirrored: Final = mirrored
        self.results: Final = tuple(results)
        there = "is in the log" if version is None else f"is at version {version} in the log"
        here = "is behind" if mirrored is None else f"is at {mirrored}"
        super().__init__(
            "mirror_behind",
            f"stream {stream!r} {there}, its mirror {here}: {why}",
            stream=stream,
            version=version,
            mirrored=mirrored,
            why=why,
        )


class MirrorDamaged(EventLogError):
    """A mirror contradicts its log: `mirror_ahead` where it only goes further, else `mirror_damaged`.

    `path` is the file, and `offset` the byte at which it is wrong, if known. Nothing in it was changed.
    """

    def __init__(
        self,
        code: str,
        message: str,
        /,
        *,
        path: str,
        stream: str | None = None,
        offset: int | None = None,
        **details: Any,
    ) -> None:
        self.path: Final = path
        self.stream: Final = stream
        self.offset: Final = offset
        super().__init__(code, message, path=path, stream=stream, offset=offset, **details)


class StoreUnavailable(EventLogError):
    """The store cannot do this now. Unless the code is `commit_outcome_unknown`, nothing was written."""


class StoreBusy(StoreUnavailable):
    """The lock or the queue was not free in time (`store_busy`). Definite: nothing was written."""

    def __init__(self, why: str, /, **details: Any) -> None:
        super().__init__("store_busy", why, **details)


class CommitOutcomeUnknown(StoreUnavailable):
    """Whether the events are in the log could not be settled in time (`commit_outcome_unknown`).

    `event_ids` are the hex ids to retry with; a retry stores them at most once.
    """

    def __init__(self, event_ids: Sequence[str], why: str) -> None:
        self.event_ids: Final = tuple(event_ids)
        super().__init__("commit_outcome_unknown", why, event_ids=list(event_ids))


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def code_of_os_error(error: OSError, otherwise: str) -> str:
    """Return `store_full` if the disk, or what may be used of it, is full; else the code of what could not be done."""
    return "store_full" if error.errno in _FULL else otherwise


class InvalidInput(EventLogError):
    """The value cannot be stored exactly. `path` names the place in it, as `$.items[0].price`. Nothing was written."""

    def __init__(self, code: str, message: str, /, *, path: str = "$", **details: Any) -> None:
        self.path: Final = path
        super().__init__(code, f"{message} (at {path})" if path != "$" else message, path=path, **details)


class Misuse(EventLogError):
    """The engine was called in a way it forbids; the caller's code has to change."""
