"""The evidence pack of one run: all that somebody needs who does not trust whoever runs the log, to check it offline.

    README.txt             what this is, and the one command
    verify.py              the verifier: `verifier.py` of this folder, byte for byte
    report.html            the story of the run, for people; it proves nothing
    checkpoint             the signed head: a C2SP signed note, with cosignatures if the log keeps any
    entries.bin            the entries of the run in order, each a u16 length, big-endian, and the bytes of
                           `eventlog/entry.py`; `prev_in_stream` links each to the one before
    proof.tlog-proof       that the last of them is in the tree of the head (C2SP tlog-proof); with the links, all are
    log-entries.bin        likewise the stream `$log`: keys, approvers and their revocation, erasures, restores
    log-proof.tlog-proof   likewise; absent where `$log` has no events
    payload/run/<version>.json, .salt     a plain body and its 16 bytes of salt; both are absent where it was erased
    payload/run/<version>.sealed          an encrypted body as it is stored
    payload/log/<version>.json, .salt     the bodies of `$log`
    approvals/<version>.dsse.json         the envelope of the signed decision at that version of the run
    consistency/<size>.proof              that the tree has only grown from that size to the head: `old <size>`, then
                                          the hashes in base64, a line each (as in a tlog-witness request)
    keys.json, policy.json                keys and terms as the log names them: hints, which prove nothing
    artifacts/<digest>                    the large values that events of the run name
    manifest.json          format, version, run, log ids, and the name, size and SHA-256 of every other file

The streams have names of their own choosing; in the pack they are `run` and `log`, so that no name of a file comes from
an event. In a zip file the members stand in this order, stored, with one fixed date: the same log under the same signed
head gives the same bytes.
"""

from __future__ import annotations

from eventlog.audit.pack.archive import write_archive
from eventlog.audit.pack.contents import Contents, covering_head, pack_files
from eventlog.audit.pack.readme import VERIFIER, verifier_digest
from eventlog.audit.pack.verifier import Report, Trust, trust_of, verify_pack

__all__ = [
    "VERIFIER",
    "Contents",
    "Report",
    "Trust",
    "covering_head",
    "pack_files",
    "trust_of",
    "verifier_digest",
    "verify_pack",
    "write_archive",
]
