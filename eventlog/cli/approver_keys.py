"""`eventlog keys challenge`, `enroll` and `revoke`: whose key stands for whom in this log.

eventlog keys enroll --approver anna --sign anna.pem                      who has the key file proves it in one step

eventlog keys challenge --approver anna --key id_ed25519.pub --to anna.pae
ssh-keygen -Y sign -n eventlog-approval@v1 -f ~/.ssh/id_ed25519 anna.pae
eventlog keys enroll --key id_ed25519.pub --challenge anna.pae --ssh-signature anna.pae.sig
"""

from __future__ import annotations

from typing import Any, Final

import click

from eventlog.audit.heads.key_file import read_key_file
from eventlog.cli.commands import Command
from eventlog.cli.options import Options
from eventlog.cli.output import show_card, write_bytes
from eventlog.cli.signed_approvals import read_bytes
from eventlog.cli.target_file import TargetFile
from eventlog.cli.waiting import duration_s
from eventlog.cli.wiring import complete, open_log, open_to_look
from eventlog.events import Envelope
from eventlog.log import RunLog
from eventlog.runtime.approvers import (
    approver_challenge,
    enrol_approver,
    enrolment_of_ssh,
    revoke_approver,
    sign_enrolment,
)
from eventlog.signing.approver_keys import ED25519, ApproverKey, parse_public_key
from eventlog.signing.envelopes import decode_envelope, pae, parse_pae
from eventlog.signing.ssh_signatures import NAMESPACE
from eventlog.signing.statements import encode_enrolment, parse_enrolment

__all__ = ["challenge", "enroll", "revoke"]

_HOUR_S: Final = 3600.0
_HARDWARE: Final = 3
_KEY: Final = click.option(
    "--key", "key_path", metavar="FILE", help="The public key: a file as id_ed25519.pub, or base64 of 32 bytes in one."
)


@click.command("challenge", cls=Command)
@click.option("--approver", metavar="ID", required=True, help="Who holds the key: an opaque id, not a name.")
@_KEY
@click.option("--not-after", "not_after_s", metavar="TIME", callback=duration_s, help="How long it counts; 1h.")
@click.option("--to", "target", metavar="FILE|-", required=True, help="Where the bytes to sign are written.")
@click.pass_obj
def challenge(options: Options, approver: str, key_path: str | None, not_after_s: float | None, target: str) -> None:
    """Write the bytes by which an approver proves that he holds a key. Reading the log is enough."""
    if key_path is None:
        raise click.UsageError("Missing option '--key'.")
    complete(options, _challenge(options, approver, key_path, not_after_s or _HOUR_S, target))


@click.command("enroll", cls=Command)
@click.option("--approver", metavar="ID", help="Who holds the key: an opaque id, not a name; with --sign.")
@_KEY
@click.option("--sign", metavar="KEY", help="Prove it with the private key in this file, in one step.")
@click.option("--challenge", "challenge_path", metavar="FILE", help="The bytes that were signed with SSH.")
@click.option("--ssh-signature", metavar="FILE", help="What `ssh-keygen -Y sign` has written of them.")
@click.option("--envelope", metavar="FILE", help="A signed DSSE envelope of the challenge.")
@click.option("--hardware", is_flag=True, help="You know that the key is in hardware, as on a smart card: level 3.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role in which it counts; repeatable.")
@click.pass_obj
def enroll(options: Options, /, **given: Any) -> None:
    """Enrol a key for an approver, whose holder has proved that he has it.

    Where a policy asks for a role and a level of 2 or more, only the roles that you name here count, and not those that
    an approver claims.
    An approval that it signs has the level 2, or 3 if the key is that of a FIDO token (`ssh-keygen -t ed25519-sk`). A
    key stands for one approver, once, until it is revoked.
    """
    ways = [name for name in ("sign", "ssh_signature", "envelope") if given[name] is not None]
    if len(ways) != 1:
        raise click.UsageError("Give one proof: --sign KEY, --challenge and --ssh-signature, or --envelope.")
    if given["sign"] is not None and given["approver"] is None:
        raise click.UsageError("--sign needs --approver.")
    if given["sign"] is None and given["key_path"] is None:
        raise click.UsageError("Missing option '--key'.")
    if (given["challenge_path"] is None) != (given["ssh_signature"] is None):
        raise click.UsageError("--challenge and --ssh-signature belong together.")
    complete(options, _enroll(options, **given))


@click.command("revoke", cls=Command)
@click.option("--reason", metavar="TEXT", help="Why; recorded.")
@click.argument("key_id", metavar="KEY_ID")
@click.pass_obj
def revoke(options: Options, key_id: str, reason: str | None) -> None:
    """Revoke a key of an approver: nothing that it signs counts from here on, and no effect begins under it."""
    complete(options, _revoke(options, key_id, reason))


async def _challenge(options: Options, approver: str, key_path: str, valid_for_s: float, target: str) -> None:
    _, public = _public_key(key_path)
    async with open_to_look(options) as opened:
        asked = await approver_challenge(opened.log, approver, public, valid_for_s=valid_for_s)
        place = opened.log.place
    signed = pae(encode_enrolment(asked))
    if target == "-":
        write_bytes(signed)
        return
    with TargetFile(target, place=place) as file:
        file.write(signed)
        file.publish()
    sign_with = f"ssh-keygen -Y sign -n {NAMESPACE} -f KEY {target}"
    card = {"path": target, "approver": asked.approver, "key_id": asked.key_id, "log_id": asked.log_id}
    show_card(options, card | {"sign_with": sign_with})


async def _enroll(options: Options, *, hardware: bool, roles: tuple[str, ...], **given: Any) -> None:
    async with open_log(options, only_looks=True) as opened:
        kind, public, proof = await _proof(opened.log, **given)
        level = _HARDWARE if hardware else None
        key = await enrol_approver(opened.log, proof, kind=kind, public=public, level=level, roles=roles)
    show_card(options, _card(key))


async def _proof(
    log: RunLog,
    *,
    approver: str | None,
    key_path: str | None,
    sign: str | None,
    challenge_path: str | None,
    ssh_signature: str | None,
    envelope: str | None,
) -> tuple[str, bytes, Envelope]:
    """Return the kind of the key, its public part, and the proof that its holder has made."""
    if sign is not None:
        key = read_key_file(sign)
        asked = await approver_challenge(log, approver or "", key.public)
        return ED25519, key.public, sign_enrolment(asked, key)
    kind, public = _public_key(key_path or "")
    if envelope is not None:
        return kind, public, decode_envelope(read_bytes(envelope, "--envelope"))
    asked = parse_enrolment(parse_pae(read_bytes(challenge_path or "", "--challenge")))
    return kind, public, enrolment_of_ssh(asked, read_bytes(ssh_signature or "", "--ssh-signature"))


async def _revoke(options: Options, key_id: str, reason: str | None) -> None:
    async with open_log(options, only_looks=True) as opened:
        key = await revoke_approver(opened.log, key_id, reason=reason)
    show_card(options, _card(key))


def _public_key(path: str) -> tuple[str, bytes]:
    return parse_public_key(read_bytes(path, "--key").decode(errors="replace").strip())


def _card(key: ApproverKey) -> dict[str, Any]:
    return {
        "approver": key.approver,
        "key_id": key.key_id,
        "kind": key.kind,
        "level": key.level,
        "roles": list(key.roles),
        "enrolled_at": key.enrolled_at,
        "revoked_at": key.revoked_at,
    }
