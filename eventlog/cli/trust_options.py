"""What the reader of a log brings along to check it: the keys of its heads, and heads from outside the database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eventlog.audit.verify import OutsideHead, PinnedApprover, Trust
from eventlog.cli.failures import CannotVerify
from eventlog.errors import EventLogError, InvalidInput, StoreUnavailable
from eventlog.plain import check_id
from eventlog.signing.approver_keys import parse_public_key
from eventlog.signing.notes import VerifierKey, parse_verifier_key

__all__ = ["read_trust"]

_MAX_KEY = 10_000


def read_trust(
    *,
    log_keys: Sequence[str],
    heads: Sequence[str],
    approvers: Sequence[str],
    signer: str | None,
    min_level: int,
    since_head: bool,
) -> Trust:
    """Return what these options name: texts of verifier keys, paths of notes or files of heads, and a signer.

    `approvers` are ID=KEY, the key as text or a file. Raises InvalidInput for a key that is none, CannotVerify for a
    file or a signer that cannot be read.
    """
    return Trust(
        log_keys=[_key(text) for text in log_keys],
        heads=[*_heads(heads), *_of_signer(signer)],
        approvers=[_approver(text) for text in approvers],
        min_level=min_level,
        since_head=since_head,
    )


def _key(text: str) -> VerifierKey:
    try:
        return parse_verifier_key(text)
    except InvalidInput as error:
        raise InvalidInput(error.code, f"--log-key: {error}") from error


def _approver(text: str) -> PinnedApprover:
    approver, _, key = text.partition("=")
    try:
        with open(key, encoding="utf-8") as file:
            key = file.read(_MAX_KEY).strip()
    except (OSError, ValueError):
        pass  # the key itself, or what is none
    try:
        check_id(approver, "approver", max_bytes=256)
        return PinnedApprover(approver=approver, public=parse_public_key(key)[1])
    except InvalidInput as error:
        raise InvalidInput(error.code, f"--approver ID=KEY: {text!r:.120} names no file and no key: {error}") from error


def _heads(paths: Sequence[str]) -> Iterator[OutsideHead]:
    for path in paths:
        try:
            with open(path, "rb") as file:
                begin = file.read(1)
                data = begin + file.read()
        except (OSError, ValueError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
            raise CannotVerify(_unreadable(path, why)) from error
        if begin == b"{":
            yield from _in_file(path)
        else:
            yield OutsideHead(note=data, source=path)


def _in_file(path: str) -> Iterator[OutsideHead]:
    from eventlog.audit.heads.head_file import kept_heads  # not on systems without `flock`

    try:
        found, _ = kept_heads(path)
    except StoreUnavailable as error:
        raise CannotVerify(error) from error
    if not found:
        raise CannotVerify(_unreadable(path, "it holds no head"))
    for kept in found:
        yield OutsideHead(note=kept.note, source=path, at_us=kept.at_us)


def _of_signer(signer: str | None) -> Iterator[OutsideHead]:
    if signer is None:
        return
    from eventlog.audit.heads import signer_from

    try:
        last = signer_from(signer).last()
    except InvalidInput:
        raise
    except EventLogError as error:
        raise CannotVerify(error) from error
    if last is None:
        raise CannotVerify(_unreadable(signer, "the signer has signed no head yet"))
    yield OutsideHead(note=last.note, source=f"the signer {signer}", at_us=last.signed_at_us)


def _unreadable(path: str, why: str) -> StoreUnavailable:
    return StoreUnavailable("head_unreadable", f"no head can be read from {path!r}: {why}", path=path)
