"""How the key that signs the heads of a log hands over to the next: on one side, or between a signer and its log.

Where one user holds the keys and writes the log, `rotate_here` does all of it. Where the signer is a process of another
user, its operator makes a statement (`write_statement`) and lets the signer sign with both keys; who writes the log
takes the statement into it (`rotate_by_statement`), which is refused while the signer has not got the new key.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final

from eventlog.audit.heads.head_file import HeadFile, move_heads
from eventlog.audit.heads.key_file import heads_beside, make_key_file, read_key_file
from eventlog.audit.heads.local_signer import LocalSigner
from eventlog.audit.heads.rotation_file import check_rotation_target, read_rotation_file, write_rotation_file
from eventlog.cli.log_events import LogStory, append_to_log
from eventlog.cli.options import Options
from eventlog.cli.output import note
from eventlog.cli.wiring import open_log
from eventlog.errors import InvalidInput, StoreUnavailable
from eventlog.events import LogKeyRotated
from eventlog.heads import HeadRequest, HeadSigner, SignedHead, StaleHead
from eventlog.signing.head_text import log_id_of, open_head
from eventlog.signing.log_keys import LogKeys, current_key, evolve_log_keys, rotate
from eventlog.signing.notes import VerifierKey, parse_verifier_key
from eventlog.stores import SqliteLog
from eventlog.stores.clock import SystemClock

__all__ = ["rotate_by_statement", "rotate_here", "write_statement"]

_MAX_STALE: Final = 3


async def rotate_here(options: Options, found: tuple[LogStory, bytes], old_path: str, new_path: str) -> dict[str, Any]:
    """Let the key in `new_path`, made if missing, take the place of the one in `old_path`; return what there is to say.

    May be repeated. Raises InvalidInput(`invalid_argument`) if the old key does not sign the log; then nothing moves.
    """
    story, log_id = found
    old = read_key_file(old_path)
    old_verifier = LocalSigner(old_path).verifier_key(log_id)
    new = read_key_file(new_path) if os.path.lexists(new_path) else None
    current = current_key(story.keys, old_verifier.name)
    is_done = new is not None and current is not None and current.public == new.public != old.public
    if current != old_verifier and not is_done:
        said = "names no key" if current is None else f"is signed by {current.to_text()!r}"
        raise InvalidInput("invalid_argument", f"the log {said}, not by the key in {old_path!r}")
    new = new or make_key_file(new_path, like=old_path)
    event = rotate(old, new.public, old_verifier.name)  # refuses a key that takes its own place, before anything moves
    move_heads(HeadFile(heads_beside(old_path)), heads_beside(new_path), at_us=SystemClock().now_us())
    signer = LocalSigner(new_path, also=[old_path])
    async with open_log(options, signer=signer) as opened:
        position = None if is_done else await append_to_log(opened.log, story, event)
        signed = await opened.log.sign_head()
    note(options, f"from now on: --signer {new_path}; the heads go on in {signer.heads_path}")
    return {**_facts(story.keys, event, position, signed), "path": new_path, "heads": signer.heads_path}


async def rotate_by_statement(
    options: Options, found: tuple[LogStory, bytes], path: str, signer: HeadSigner
) -> dict[str, Any]:
    """Take the statement in a file into the log, once the signer signs with both keys; return what there is to say.

    May be repeated. Raises InvalidInput(`invalid_argument`) for a statement that is none, or of another log or key, and
    StoreUnavailable(`head_refused`) if the signer has not got the new key, before anything is written.
    """
    story, log_id = found
    event = read_rotation_file(path)
    new = parse_verifier_key(event.verifier_key)
    is_done = current_key(story.keys, new.name) == new
    if not is_done:
        _check_statement(story, log_id, event, path)
    async with open_log(options, signer=signer) as opened:
        if not is_done:
            await _check_signs_as(opened.log, signer, (parse_verifier_key(event.replaces), new))
        position = None if is_done else await append_to_log(opened.log, story, event)
        signed = await opened.log.sign_head()
    note(options, "let the signer's operator end the overlap when he likes: `eventlog signer --key NEW` without --also")
    return _facts(story.keys, event, position, signed)


def write_statement(old_path: str, new_path: str, *, heads: str | None, statement: str | None) -> dict[str, Any]:
    """Write the statement of a rotation, and let the heads go on beside the new key; return what there is to say.

    Heads at a path that was named stay there. May be repeated. Raises InvalidInput(`invalid_argument`) if the key has
    signed nothing yet; Misuse(`target_exists`).
    """
    old, target = read_key_file(old_path), statement or f"{new_path}.rotation"
    signer = LocalSigner(old_path, heads_path=heads)
    log_id = signer.current()
    if log_id is None:
        raise InvalidInput("invalid_argument", f"no log is known in {signer.heads_path!r}: the key has signed nothing")
    new = read_key_file(new_path) if os.path.lexists(new_path) else make_key_file(new_path, like=old_path)
    event = rotate(old, new.public, signer.origin(log_id))
    check_rotation_target(target, event)  # before anything moves
    if heads is None:
        move_heads(HeadFile(signer.heads_path), heads_beside(new_path), at_us=SystemClock().now_us())
    write_rotation_file(target, event)
    where = heads_beside(new_path) if heads is None else heads
    return {
        "replaces": event.replaces,
        "verifier_key": event.verifier_key,
        "statement": target,
        "path": new_path,
        "heads": where,
    }


def _check_statement(story: LogStory, log_id: bytes, event: LogKeyRotated, path: str) -> None:
    """Raise InvalidInput(`invalid_argument`) unless the log takes this event as its next one about keys."""
    if log_id_of(parse_verifier_key(event.verifier_key).name) != log_id:
        raise InvalidInput("invalid_argument", f"{path!r} is about another log, or one that was restored since")
    after = evolve_log_keys(story.keys, 1 + max((each.position for each in story.events), default=0), event)
    if len(after.problems) > len(story.keys.problems):
        raise InvalidInput("invalid_argument", f"the log does not take {path!r}: {after.problems[-1].why}")


async def _check_signs_as(log: SqliteLog, signer: HeadSigner, keys: tuple[VerifierKey, VerifierKey]) -> None:
    """Have a head signed again, and raise StoreUnavailable(`head_refused`) unless both keys have signed it.

    The new key has to sign the heads from the rotation on, the old one those before it.
    """
    signed = await _signed_again(log, signer)
    missing = [key for key in keys if not _is_signed(signed, key)]
    if missing:
        why = f"the signer does not sign with the key {missing[0].to_text()!r}"
        how = "its operator lets it with `eventlog signer --key NEW --also OLD`"
        raise StoreUnavailable("head_refused", f"{why}; {how}; nothing was written")


async def _signed_again(log: SqliteLog, signer: HeadSigner) -> SignedHead:
    for _ in range(_MAX_STALE):
        last = await log.sign_head()
        assert last is not None, "a log that names a key is not empty"
        request = HeadRequest(log_id=last.log_id, head=last.head, old_size=last.head.size, proof=[])
        try:
            return await asyncio.to_thread(signer.sign, request)
        except StaleHead:  # another program has had a larger one signed meanwhile
            continue
    raise StoreUnavailable("signer_unavailable", "the signer signs heads of others faster than it can be asked")


def _is_signed(signed: SignedHead, key: VerifierKey) -> bool:
    try:
        return bool(open_head(signed.note, [key]).verified)
    except InvalidInput:
        return False


def _facts(keys: LogKeys, event: LogKeyRotated, position: int | None, signed: SignedHead | None) -> dict[str, Any]:
    return {
        "replaces": event.replaces,
        "verifier_key": event.verifier_key,
        "position": position if position is not None else _position_of(keys, parse_verifier_key(event.verifier_key)),
        "signed_size": None if signed is None else signed.head.size,
    }


def _position_of(keys: LogKeys, new: VerifierKey) -> int | None:
    return next((each.position for each in reversed(keys.keys) if each.key == new), None)
