"""The text that stands in front of a pack, and the verifier that lies in it."""

from __future__ import annotations

import shlex
from hashlib import sha256
from importlib.resources import files
from typing import Final

from eventlog.text import visible

__all__ = ["VERIFIER", "readme", "verifier_digest"]

VERIFIER: Final = files("eventlog.audit.pack").joinpath("verifier.py").read_bytes()
"""The one-file verifier, as it is put into every pack."""

_TEXT: Final = """\
Evidence of one run of an eventlog: what was proposed, who approved it, and what was done.

    run          {run}
    log          {origin}
    signed head  {size} events

To check it, on any machine, offline (Python 3.9 or newer, and the package `cryptography`):

    python verify.py PACK --log-key VKEY --approver ID=KEY --run {quoted}

PACK is this archive, or the folder with its files. VKEY is the key that signs the heads of the log, and KEY that of an
approver: take them from somebody you trust, not from here. `keys.json` and `policy.json` only say what the log itself
says. Without a key of yours nothing is proved, and the verifier ends with status 4; with status 0 all of it holds, and
with 3 something is wrong, which it names. `--help`, and the head of the file, have the rest.

The SHA-256 of the verifier is

    {digest}  verify.py

A verifier that comes with the evidence is a convenience: whoever made the one could have changed the other. Take it
from the published package of the same name (`eventlog/audit/pack/verifier.py`), or compare that digest with one that
you got by another way.

No pack can show that there are no later events of the run than those in it, that there was no later revocation of a
key, or that what was recorded is what happened. `report.html` is for reading; it is not checked.
"""


def verifier_digest() -> str:
    """Return the SHA-256 of the verifier, as 64 hex digits."""
    return sha256(VERIFIER).hexdigest()


def readme(run_id: str, origin: str, size: int) -> bytes:
    """Return the text of README.txt."""
    run = visible(run_id)
    return _TEXT.format(
        run=run, quoted=shlex.quote(run), origin=visible(origin), size=size, digest=verifier_digest()
    ).encode()
