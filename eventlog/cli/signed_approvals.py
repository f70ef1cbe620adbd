"""Approvals that are signed on the command line: with a key file, or elsewhere and then handed in.

    eventlog approve RUN --proposal-hash HASH --sign KEY                    shows, signs and records in one step

    eventlog approvals statement RUN --actor anna --to run.pae              reading the log is enough for this
    ssh-keygen -Y sign -n eventlog-approval@v1 -f ~/.ssh/id_ed25519 run.pae
    eventlog approve RUN --statement run.pae --ssh-signature run.pae.sig

What is signed stands on standard error first, whole; its digest is part of the statement. Beside a key there is the
file of the heads that it has signed (`<KEY>.seen`): a log that does not go on from there is not signed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import click
from msgspec import to_builtins
from msgspec.structs import replace

from eventlog.audit.heads.key_file import read_key_file
from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, write_bytes, write_error_text
from eventlog.cli.seen_heads import SeenHeads
from eventlog.cli.target_file import TargetFile
from eventlog.cli.text import visible, why_unreadable
from eventlog.cli.waiting import duration_s
from eventlog.cli.wiring import complete, open_to_look
from eventlog.events import Envelope
from eventlog.log import EventReader
from eventlog.merkle import TreeHead
from eventlog.runtime.approval_statements import (
    VALID_FOR_S,
    PreparedApproval,
    bytes_to_sign,
    envelope_of_ssh,
    prepare_approval,
    require_growth,
    sign_approval,
)
from eventlog.signing.envelopes import decode_envelope, parse_pae
from eventlog.signing.ssh_signatures import NAMESPACE
from eventlog.signing.statements import key_id_of, parse_approval

__all__ = ["Signing", "handed_in", "read_bytes", "sign_here", "signing_of", "signing_options", "statement"]

F = TypeVar("F", bound=Callable[..., Any])
Decision = Literal["approve", "reject"]

_MAX_BYTES: Final = 1024 * 1024
_NOT_AFTER: Final = click.option(
    "--not-after",
    "not_after_s",
    metavar="TIME",
    callback=duration_s,
    help="For how long the signature counts, until the effect has begun; 30m by default.",
)


class Signing(NamedTuple):
    """How a decision is signed: with the key in a file, as this approver, for so many seconds."""

    key_path: str
    actor: str | None
    valid_for_s: float


def signing_options(command: F) -> F:
    """Give a command the options of a signed decision."""
    for option in reversed(
        (
            click.option("--sign", metavar="KEY", help="Sign it with the key in this file, which is enrolled."),
            click.option("--statement", metavar="FILE", help="The bytes that were signed elsewhere, with SSH."),
            click.option("--ssh-signature", metavar="FILE", help="What `ssh-keygen -Y sign` has written of them."),
            click.option("--envelope", metavar="FILE", help="A signed DSSE envelope."),
            click.option("--actor", metavar="ID", help="Who decides, with --sign; by default whose key it is."),
            _NOT_AFTER,
        )
    ):
        command = option(command)
    return command


def handed_in(given: dict[str, Any]) -> Envelope | None:
    """Return the envelope that was signed elsewhere, if the options name one. Raises click.UsageError, InvalidInput."""
    ways = [name for name in ("sign", "statement", "envelope") if given.get(name) is not None]
    if len(ways) > 1:
        raise click.UsageError(f"--{ways[0]} and --{ways[1]} are two ways of signing; give one of them.")
    if (given.get("statement") is None) != (given.get("ssh_signature") is None):
        raise click.UsageError("--statement and --ssh-signature belong together.")
    if given.get("sign") is None and (given.get("actor") is not None or given.get("not_after_s") is not None):
        raise click.UsageError("--actor and --not-after are for --sign; what was signed elsewhere says both itself.")
    if given.get("envelope") is not None:
        return decode_envelope(read_bytes(given["envelope"], "--envelope"))
    if given.get("statement") is None:
        return None
    signed = parse_approval(parse_pae(read_bytes(given["statement"], "--statement")))
    return envelope_of_ssh(signed, read_bytes(given["ssh_signature"], "--ssh-signature"))


def signing_of(given: dict[str, Any]) -> Signing | None:
    """Return how the decision is to be signed here, if the options say so."""
    if given.get("sign") is None:
        return None
    return Signing(given["sign"], given.get("actor"), given.get("not_after_s") or VALID_FOR_S)


async def sign_here(
    log: EventReader,
    signing: Signing,
    decision: Decision,
    run_id: str,
    proposal_hash: str,
    *,
    request: str | None,
    reason: str | None,
    roles: tuple[str, ...],
) -> Envelope:
    """Show the request on standard error, and return the decision on exactly this hash, signed.

    The head that it holds is kept in `<KEY>.seen` before. Raises as `prepare_approval`, `require_growth` and
    `read_key_file`.
    """
    key = read_key_file(signing.key_path)
    prepared = await prepare_approval(
        log,
        run_id,
        approver=signing.actor,
        key_id=key_id_of(key.public),
        decision=decision,
        request=request,
        proposal_hash=proposal_hash,
        reason=reason,
        roles=roles,
        valid_for_s=signing.valid_for_s,
    )
    write_error_text(prepared.shown.rstrip("\n"))
    await _witness(log, prepared, f"{signing.key_path}.seen")
    # What was named is what is signed. If it is not what is asked, that is refused by the log, with a trace.
    return sign_approval(replace(prepared.statement, proposal_sha256=proposal_hash), key)


@click.command("statement", cls=Command)
@click.option("--request", metavar="ID", help="Which request, where a run has several.")
@click.option("--actor", metavar="ID", help="Who decides: the approver whose key will sign.")
@click.option("--key-id", metavar="ID", help="Which of his keys, where he has several.")
@click.option("--decision", type=click.Choice(("approve", "reject")), default="approve", show_default=True)
@click.option("--reason", metavar="TEXT", help="Why; it is signed with the rest.")
@click.option("--role", "roles", multiple=True, metavar="ROLE", help="A role that he brings; repeatable.")
@_NOT_AFTER
@click.option("--seen", metavar="FILE", help="The heads that he has signed: the log has to go on from the last.")
@click.option("--to", "target", metavar="FILE|-", required=True, help="Where the bytes to sign are written.")
@click.argument("run_id", metavar="RUN")
@click.pass_obj
def statement(options: Options, /, **given: Any) -> None:
    """Write the bytes that an approver signs, and show what they say. Reading the log is enough.

    Sign them with `ssh-keygen -Y sign -n eventlog-approval@v1 -f KEY FILE`, and hand both in with
    `eventlog approve RUN --statement FILE --ssh-signature FILE.sig`, or `eventlog reject` for --decision reject.
    """
    if given["actor"] is None and given["key_id"] is None:
        raise click.UsageError("Say who is to sign: --actor or --key-id.")
    complete(options, _statement(options, **given))


async def _statement(
    options: Options, *, actor: str | None, not_after_s: float | None, seen: str | None, target: str, **given: Any
) -> None:
    async with open_to_look(options) as opened:
        prepared = await prepare_approval(
            opened.log,
            given.pop("run_id"),
            approver=actor,
            valid_for_s=not_after_s or VALID_FOR_S,
            roles=tuple(given.pop("roles")),
            **given,
        )
        if seen is not None:
            await _witness(opened.log, prepared, seen)
        else:
            await require_growth(opened.log, prepared, None)
        place = opened.log.place
    signed = bytes_to_sign(prepared.statement)
    shown = prepared.shown.rstrip("\n").split("\n")
    if target == "-":
        write_error_text("\n".join(map(visible, shown)))
        write_bytes(signed)
        return
    with TargetFile(target, place=place) as file:
        file.write(signed)
        file.publish()
    card = {"path": target, **to_builtins(prepared.statement), "roles": list(prepared.statement.roles)}
    sign_with = f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY {target}"
    document = {**card, "shown": prepared.shown, "sign_with": sign_with}
    show_card(options, card, document=document, extra=[*shown, f"sign with:  {sign_with}"])


async def _witness(log: EventReader, prepared: PreparedApproval, path: str) -> None:
    """Look at the log as a witness, and keep the head that is going to be signed."""
    head, log_id = prepared.statement.head, prepared.statement.log_id
    with SeenHeads(path) as seen:
        await require_growth(log, prepared, seen.last(log_id))
        seen.keep(log_id, TreeHead(head.size, bytes.fromhex(head.root)))


def read_bytes(path: str, option: str) -> bytes:
    """Return the bytes of a file that an option names. Raises click.UsageError if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{option}: cannot read {path!r}: {why_unreadable(error)}.") from error
    if len(data) > _MAX_BYTES:
        raise click.UsageError(f"{option}: {path!r} has more than {_MAX_BYTES} bytes.")
    return data
