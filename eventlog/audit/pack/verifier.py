#!/usr/bin/env python3
"""Check an evidence pack of one run, offline, without trusting whoever made it.

    python verify.py PACK --log-key VKEY [--approver ID=KEY ...] [--witness VKEY ... --quorum N] [--min-level N]
                          [--head FILE ...] [--run RUN] [--policy FILE] [--json]

One file; needs Python 3.9 or newer and the package `cryptography`, and nothing else. PACK is the zip file or a folder
with what was in it. Nothing is extracted, written, or asked for over a network. Whatever the pack says of keys is a
hint: what is trusted comes from the command line, or from a policy file of the auditor's own:

    {
      "log_keys": ["log.example/runs/<log id>+1a2b3c4d+AX..."],
      "approvers": [{"id": "alice", "key": "<base64 of 32 bytes, or an OpenSSH ssh-ed25519 line>", "level": 2}],
      "witnesses": ["witness.example+5e6f7a8b+BD..."],
      "quorum": 1,
      "min_level": 2,
      "run": "refund-17",
      "revoked": [{"key_id": "<as in the statement>", "position": 120}]
    }

Every key of it may be missing. With --approver KEY may be a file, as `alice.pub`. `level` is what a signature by this
key proves (2: only the approver holds it, 3: it is in hardware). Where approvers are named, nobody else's approval is
taken on the word of the pack. VKEY is a verifier key of the C2SP signed-note format. A `--head` is a signed head that
the auditor kept from another time, a signer's file of heads, or a proof that leads from one head to another (the body
of a tlog-witness `add-checkpoint` request).

Verdicts, one a line, each `ok`, `none`, `unverified` (it could not be checked) or `failed`:

    files       the pack holds what its layout says, each file once; the manifest agrees (it proves nothing)
    integrity   every entry has its one spelling; streams have versions 1, 2, 3, ... each linked to the one before;
                every body is what its entry commits to
    inclusion   the last entry of the run, and of the log's own stream, are in the tree of the signed head
    head        that head is signed by a log key that the auditor trusts, and agrees with heads that he kept; which
                restores of older copies the log declares, each of which ends in the loss of what it names
    witnesses   as many witnesses as he asks for have signed it too
    story       what was executed is what was proposed and approved, on the terms that were asked for
    approvals   each with its level; signed ones checked against the key, this run, this proposal, and the tree
    erasures    bodies that are gone are gone by a recorded erasure
    artifacts   the large values that events name are here, and are those

Exit status: 0 all of it holds; 3 something is wrong; 4 something could not be checked (no trusted key, a key that only
the pack vouches for where a level is asked for, `cryptography` missing); 2 wrong usage.

What no pack can show: that there are no later events of the run, or of the log's own stream (a revocation, say), than
those that are in it; that what was recorded is what happened; the true time.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import bisect
import datetime
import functools
import hashlib
import json
import os
import re
import stat
import struct
import sys
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

__all__ = ["Finding", "PackError", "Problem", "Report", "Trust", "main", "read_kept", "trust_of", "verify_pack"]

FORMAT = "eventlog evidence pack"
VERSION = 1

# ── Limits: what a pack may make this program do ─────────────────────────────────────────────────────────────────────

MAX_FILES = 1_000_000
MAX_NAME = 200
MAX_TOTAL = 8 << 30
MAX_ARCHIVE = 8 << 30
MAX_TABLE = 256 << 20  # entries.bin, and the manifest
MAX_BODY = 32 << 20
MAX_TEXT = 1 << 20  # notes, proofs, envelopes
MAX_HEADS = 1_000_000  # in a file of heads, which has at most MAX_TABLE bytes
MAX_PROOF = 63
MAX_SIGNATURES = 64
MAX_APPROVERS = 10_000
MAX_DEPTH = 256
MAX_DIGITS = 400
MAX_SHOWN = 50  # problems that are spelled out for each verdict

NAME = re.compile(
    r"manifest\.json|README\.txt|verify\.py|report\.html|checkpoint|keys\.json|policy\.json|entries\.bin"
    r"|log-entries\.bin|proof\.tlog-proof|log-proof\.tlog-proof"
    r"|payload/(?:run|log)/[1-9][0-9]{0,17}\.(?:json|salt|sealed)"
    r"|approvals/[1-9][0-9]{0,17}\.dsse\.json|consistency/(?:0|[1-9][0-9]{0,17})\.proof|artifacts/[0-9a-f]{64}"
)
NEEDED = ("manifest.json", "checkpoint", "entries.bin", "log-entries.bin", "proof.tlog-proof")
PRINTED = 200


# ── What is found ────────────────────────────────────────────────────────────────────────────────────────────────────

OK, NONE, UNVERIFIED, FAILED = "ok", "none", "unverified", "failed"
VERDICTS = (
    "files",
    "integrity",
    "inclusion",
    "head",
    "witnesses",
    "story",
    "approvals",
    "erasures",
    "artifacts",
)


class PackError(Exception):
    """The pack cannot be read any further: damaged, or made to harm."""

    def __init__(self, message: str, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or that could not be checked (`unverified`): in which file, event and field."""

    message: str
    file: str | None = None
    event: str | None = None
    field: str | None = None
    is_unverified: bool = False

    def to_json(self) -> dict[str, Any]:
        facts = {"message": self.message, "file": self.file, "event": self.event, "field": self.field}
        return {**{key: value for key, value in facts.items() if value is not None}, "unverified": self.is_unverified}


@dataclass
class Finding:
    """One verdict. `says` is one line for people, `facts` are for machines."""

    says: str = ""
    is_none: bool = False
    problems: list[Problem] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if any(not problem.is_unverified for problem in self.problems):
            return FAILED
        if self.problems:
            return UNVERIFIED
        return NONE if self.is_none else OK

    def fails(self, message: str, file: Any = None, event: Any = None, field: Any = None) -> None:
        self.problems.append(Problem(message, file, event, field))

    def cannot_tell(self, message: str, file: Any = None, event: Any = None, field: Any = None) -> None:
        self.problems.append(Problem(message, file, event, field, is_unverified=True))


@dataclass
class Report:
    """All verdicts. `exit_status` is what the program ends with."""

    findings: dict[str, Finding] = field(default_factory=lambda: {name: Finding() for name in VERDICTS})
    run: str | None = None

    def __getitem__(self, name: str) -> Finding:
        return self.findings[name]

    @property
    def exit_status(self) -> int:
        verdicts = {finding.verdict for finding in self.findings.values()}
        return 3 if FAILED in verdicts else 4 if UNVERIFIED in verdicts else 0

    @property
    def conclusion(self) -> str:
        return {0: "verified", 3: "failed", 4: "unverified"}[self.exit_status]

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"conclusion": self.conclusion, "exit_status": self.exit_status, "run": self.run}
        for name, finding in self.findings.items():
            problems = [problem.to_json() for problem in finding.problems[:MAX_SHOWN]]
            said = {"verdict": finding.verdict, "says": finding.says, **finding.facts, "problems": problems}
            facts[name] = {**said, "problem_count": len(finding.problems)}
        return facts


# ── What the auditor trusts ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Approver:
    """Who the auditor knows to hold a key. `key` is its 32 bytes; `level` is what its signature proves."""

    id: str
    key: bytes
    level: int = 2


@dataclass(frozen=True)
class NoteKey:
    """A verifier key of a signed note: alg 1 signs the note, alg 4 cosigns it."""

    name: str
    id: bytes
    alg: int
    key: bytes

    @property
    def text(self) -> str:
        """The key as an event spells it."""
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(bytes([self.alg]) + self.key).decode()}"


@dataclass(frozen=True)
class Trust:
    """The auditor's own policy. `heads` are the bytes of notes and proofs that he kept."""

    log_keys: tuple[NoteKey, ...] = ()
    approvers: tuple[Approver, ...] = ()
    witnesses: tuple[NoteKey, ...] = ()
    quorum: int = 0
    min_level: int = 0
    heads: tuple[tuple[str, bytes], ...] = ()
    run: str | None = None
    revoked: tuple[tuple[str, int], ...] = ()


def trust_of(
    policy: Any = None,
    *,
    log_keys: Sequence[str] = (),
    approvers: Sequence[str] = (),
    witnesses: Sequence[str] = (),
    quorum: int | None = None,
    min_level: int | None = None,
    heads: Sequence[tuple[str, bytes]] = (),
    run: str | None = None,
) -> Trust:
    """Return the trust that a policy file and the options spell together. Raises ValueError for what spells none."""
    policy = {} if policy is None else policy
    known = {"log_keys", "approvers", "witnesses", "quorum", "min_level", "run", "revoked"}
    if not isinstance(policy, dict) or set(policy) - known:
        raise ValueError("a policy is a JSON object with the keys " + ", ".join(sorted(known)))
    keys = tuple(parse_note_key(text, 1) for text in (*_texts_of(policy, "log_keys"), *log_keys))
    seen_by = tuple(parse_note_key(text, 4) for text in (*_texts_of(policy, "witnesses"), *witnesses))
    people = [_approver_of(item) for item in _list_of(policy, "approvers")]
    people += [_approver_of(dict(zip(("id", "key"), text.partition("=")[::2]))) for text in approvers]
    wanted: Any = policy.get("quorum", len(seen_by)) if quorum is None else quorum
    least: Any = policy.get("min_level", 0) if min_level is None else min_level
    if not _is_whole(wanted, len(seen_by)):
        raise ValueError("the quorum is a number of the witnesses, and no more than there are")
    if not _is_whole(least, 3):
        raise ValueError("a level is 0, 1, 2 or 3")
    name = policy.get("run") if run is None else run
    if name is not None and type(name) is not str:
        raise ValueError("`run` is a text")
    gone = tuple(_revoked_of(item) for item in _list_of(policy, "revoked"))
    return Trust(keys, tuple(people), seen_by, wanted, least, tuple(heads), name, gone)


def _is_whole(value: Any, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def _list_of(policy: dict[str, Any], name: str) -> list[Any]:
    value = policy.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"`{name}` is a list")
    return value


def _texts_of(policy: dict[str, Any], name: str) -> list[str]:
    value = _list_of(policy, name)
    if any(type(each) is not str for each in value):
        raise ValueError(f"`{name}` is a list of texts")
    return value


def _approver_of(item: Any) -> Approver:
    if not isinstance(item, dict) or set(item) - {"id", "key", "level"} or not {"id", "key"} <= set(item):
        raise ValueError("an approver is ID=KEY, or {id, key, level} in a policy")
    level = item.get("level", 3 if str(item["key"]).startswith(SSH_TOKEN + " ") else 2)
    if type(item["id"]) is not str or not item["id"] or type(level) is not int or not 2 <= level <= 3:
        raise ValueError("an approver has an id, and a key of level 2 or 3")
    return Approver(item["id"], checked_key(public_key_of(item["key"])), level)


def _revoked_of(item: Any) -> tuple[str, int]:
    if not isinstance(item, dict) or set(item) != {"key_id", "position"} or type(item["position"]) is not int:
        raise ValueError("a revoked key is {key_id, position}")
    return str(item["key_id"]), item["position"]


# ── The pack: a zip file or a folder ─────────────────────────────────────────────────────────────────────────────────


class Pack:
    """The files of a pack, by name. Foreign names, the same name twice, and too much of anything are refused."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = sizes
        if sum(sizes.values()) > MAX_TOTAL:
            raise PackError("the files of the pack are too large together")

    def open(self, name: str) -> BinaryIO:
        raise NotImplementedError

    def close(self) -> None:
        """Give the file back."""

    def read(self, name: str, limit: int) -> bytes:
        """Return a file whole. Raises PackError if it is not there, too large, or damaged."""
        if name not in self.sizes:
            raise PackError("the file is missing", name)
        if self.sizes[name] > limit:
            raise PackError(f"more than {limit} bytes", name)
        return b"".join(self.pieces(name))

    def pieces(self, name: str) -> Iterator[bytes]:
        """Give the bytes of a file, never more than its stated size. Raises PackError."""
        left = self.sizes[name]
        try:
            with self.open(name) as file:
                while left:
                    piece = file.read(min(left, 1 << 20))
                    if not piece:
                        raise PackError("the file is cut short", name)
                    left -= len(piece)
                    yield piece
                if file.read(1):
                    raise PackError("the file is longer than it says", name)
        except PackError:
            raise
        except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, struct.error) as error:
            raise PackError(f"the file cannot be read: {error}", name) from error
        except (zipfile.BadZipFile, zlib.error) as error:
            raise PackError(f"the file is damaged: {error}", name) from error


class ZipPack(Pack):
    """A pack in a zip file. It is read in place; members are stored or deflated, and nothing else."""

    def __init__(self, path: str) -> None:
        if os.path.getsize(path) > MAX_ARCHIVE:
            raise PackError("the archive is too large")
        try:
            self._archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, struct.error, EOFError) as error:
            raise PackError(f"no zip archive, or a damaged one: {error}") from error
        super().__init__(_zip_sizes(self._archive.infolist()))

    def open(self, name: str) -> BinaryIO:
        return self._archive.open(name)  # type: ignore[return-value]

    def close(self) -> None:
        self._archive.close()


def _zip_sizes(members: Sequence[zipfile.ZipInfo]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    if len(members) > MAX_FILES:
        raise PackError("more files than a pack has")
    for member in members:
        name = _checked_name(member.orig_filename)
        if name in sizes:
            raise PackError("the archive holds this name twice", name)
        if member.flag_bits & 0x1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise PackError("encrypted, or compressed in a way that packs are not", name)
        sizes[name] = member.file_size
    return sizes


class FolderPack(Pack):
    """A pack in a folder. Links and whatever is no regular file are refused."""

    def __init__(self, path: str) -> None:
        self._path = path
        super().__init__(dict(_folder_sizes(path)))

    def open(self, name: str) -> BinaryIO:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.fdopen(os.open(os.path.join(self._path, *name.split("/")), flags), "rb")


def _folder_sizes(path: str) -> Iterator[tuple[str, int]]:
    count = 0
    folders = [("", 0)]
    while folders:
        folder, depth = folders.pop()
        with os.scandir(os.path.join(path, folder)) as found:
            for each in found:
                count += 1
                name = folder + each.name
                facts = each.stat(follow_symlinks=False)
                if count > MAX_FILES:
                    raise PackError("more files than a pack has")
                if stat.S_ISDIR(facts.st_mode) and depth < 2:
                    folders.append((name + "/", depth + 1))
                elif stat.S_ISREG(facts.st_mode):
                    yield _checked_name(name), facts.st_size
                else:
                    raise PackError("neither a file nor a folder of a pack", _checked_name(name))


def _checked_name(name: str) -> str:
    if len(name) > MAX_NAME or not NAME.fullmatch(name):
        raise PackError(f"no pack has a file with this name: {name[:PRINTED]}")
    return name


# ── JSON: one reading only ───────────────────────────────────────────────────────────────────────────────────────────

_SPACE = re.compile(r"[ \t\n\r]*")


def parse_json(data: bytes, what: str) -> Any:
    """Return what JSON bytes say. Raises ValueError for duplicate keys, NaN, too much depth, and what is no JSON."""
    text = data.decode("utf-8")
    _check_depth(text, what)
    return json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_whole).decode(text)


def members_of(data: bytes, what: str) -> dict[str, tuple[Any, bytes]]:
    """Return the members of a JSON object, each as a value and as its bytes. Raises ValueError."""
    text = data.decode("utf-8")
    _check_depth(text, what)
    decoder = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant, parse_int=_whole)
    found: dict[str, tuple[Any, bytes]] = {}
    at = _after_space(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError(f"{what} is no JSON object")
    at = _after_space(text, at + 1)
    if text[at : at + 1] == "}":
        return _end_of(text, at + 1, found, what)
    while True:
        if text[at : at + 1] != '"':
            raise ValueError(f"{what} is no JSON")
        key, at = decoder.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError(f"{what} is no JSON")
        start = _after_space(text, at + 1)
        value, at = decoder.raw_decode(text, start)
        if key in found:
            raise ValueError(f"{what} has the key {key!r:.60} twice")
        found[key] = (value, text[start:at].encode("utf-8"))
        at = _after_space(text, at)
        if text[at : at + 1] == "}":
            return _end_of(text, at + 1, found, what)
        if text[at : at + 1] != ",":
            raise ValueError(f"{what} is no JSON")
        at = _after_space(text, at + 1)


def _end_of(text: str, at: int, found: dict[str, tuple[Any, bytes]], what: str) -> dict[str, tuple[Any, bytes]]:
    if _after_space(text, at) != len(text):
        raise ValueError(f"something follows the JSON of {what}")
    return found


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _check_depth(text: str, what: str) -> None:
    """Refuse what is nested too deeply, before anything recursive reads it. Linear in time, whatever the text is."""
    depth = 0
    for match in re.finditer(r'"[^"]*"?|[\[{]|[\]}]', re.sub(r"\\.", "", text, flags=re.DOTALL)):
        mark = match.group()
        if mark in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError(f"{what} is nested too deeply")
        elif mark in "]}":
            depth -= 1


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object, and readers differ on what that means")
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _whole(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number with too many digits")
    return int(text)


def decode_base64(text: Any) -> bytes:
    """Return the bytes of the one base64 spelling. Raises ValueError for any other."""
    if type(text) is not str or not text.isascii():
        raise ValueError("no base64")
    data = base64.b64decode(text, validate=True)
    if base64.b64encode(data).decode() != text:
        raise ValueError("base64 that is not spelled as it should be")
    return data


# ── Entries, layout version 1 ────────────────────────────────────────────────────────────────────────────────────────

LABEL = b"eventlog/entry/v1\0"
CONTENT_LABEL = b"eventlog/content/v1\0"
STORED_LABEL = b"eventlog/stored/v1\0"
FIXED = struct.Struct(">16sQQqH16s16sBI32s32s32s")
TEXT_SIZES = ((1, 512), (1, 128), (1, 256), (0, 128))
PLAIN, ENCRYPTED = 0, 1
NO_HASH = bytes(32)
SEALED = struct.Struct(">B16s12s32sI")


@dataclass(frozen=True)
class Entry:
    """An entry of the log, its leaf, and what is left of its body (None: nothing; see `has_body`)."""

    log_id: bytes
    position: int
    version: int
    recorded_at_us: int
    schema_version: int
    event_id: bytes
    causation_id: bytes
    body_kind: int
    body_len: int
    content_commit: bytes
    stored_hash: bytes
    prev_in_stream: bytes
    stream: str
    type: str
    actor: str
    correlation_id: str
    leaf: bytes

    def __str__(self) -> str:
        return f"{self.stream} version {self.version} (position {self.position}, {self.type})"


def parse_entry(data: bytes) -> Entry:
    """Return the entry that these bytes spell. Raises ValueError unless it is the one spelling of an entry."""
    start = len(LABEL) + FIXED.size
    if len(data) < start or not data.startswith(LABEL):
        raise ValueError("not an entry of layout version 1")
    fields = FIXED.unpack_from(data, len(LABEL))
    texts: list[str] = []
    at = start
    for low, high in TEXT_SIZES:
        if at + 2 > len(data):
            raise ValueError("the entry is cut short")
        size = int.from_bytes(data[at : at + 2], "big")
        if not low <= size <= high or at + 2 + size > len(data):
            raise ValueError("a text of the entry is cut short, empty or too long")
        texts.append(data[at + 2 : at + 2 + size].decode("utf-8"))
        at += 2 + size
    if at != len(data):
        raise ValueError("something follows the last field of the entry")
    if any(ord(mark) < 32 or ord(mark) == 127 for text in texts for mark in text):
        raise ValueError("a text of the entry holds control characters")
    leaf = hashlib.sha256(b"\0" + data).digest()
    entry = Entry(**dict(zip(Entry.__dataclass_fields__, (*fields, *texts, leaf))))
    if entry.event_id == bytes(16) or entry.position < 1 or entry.version < 1:
        raise ValueError("an entry has an id, a position and a version")
    if entry.body_kind not in (PLAIN, ENCRYPTED):
        raise ValueError(f"body_kind {entry.body_kind} is not known")
    if entry.body_kind == PLAIN and entry.stored_hash != NO_HASH:
        raise ValueError("a plain body has no stored_hash")
    return entry


def split_entries(data: bytes) -> Iterator[bytes]:
    """Give the entries of a file: each a u16 length, big-endian, and its bytes. Raises ValueError."""
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        if at + 2 + size > len(data):
            raise ValueError("the last entry is cut short")
        yield data[at + 2 : at + 2 + size]
        at += 2 + size


# ── The Merkle tree of RFC 6962; proofs are checked as in RFC 9162, 2.1.3.2 and 2.1.4.2 ──────────────────────────────


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def is_included(index: int, leaf: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Say whether the proof shows that `leaf` is the leaf `index` of the tree of `size` leaves with this root."""
    if not 0 <= index < size or len(proof) > MAX_PROOF:
        return False
    node, last, found = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(each, found)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, each)
        node, last = node >> 1, last >> 1
    return last == 0 and found == root


def is_consistent(old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Say whether the proof shows that the tree of `size` leaves begins with that of `old_size`, which is not empty."""
    if not 0 < old_size <= size or len(proof) > MAX_PROOF:
        return False
    if old_size == size:
        return old_root == root and not proof
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not path:
        return False
    node, last = old_size - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old = new = path[0]
    for each in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            old, new = node_hash(each, old), node_hash(each, new)
            while node and not node & 1:
                node, last = node >> 1, last >> 1
        else:
            new = node_hash(new, each)
        node, last = node >> 1, last >> 1
    return last == 0 and old == old_root and new == root


# ── Ed25519 ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P


@functools.lru_cache(maxsize=256)
def checked_key(key: bytes) -> bytes:
    """Return a public key of 32 bytes under which only its holder can sign.

    Raises ValueError for one that is not spelled canonically, is no point of the curve, or is not of the group of prime
    order: under points of small order, signatures that nobody made are valid, and libraries take such keys.
    """
    if len(key) != 32:
        raise ValueError("an Ed25519 key has 32 bytes")
    encoded = int.from_bytes(key, "little")
    y, sign = encoded & (2**255 - 1), encoded >> 255
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if y >= _P or x * x % _P != square or (x == 0 and sign):
        raise ValueError("no point of the Ed25519 curve, or not its one spelling")
    point = (x, y, 1, x * y % _P)
    if _is_neutral(point) or not _is_neutral(_times(_L, point)):
        raise ValueError("a weak Ed25519 key: others could sign under it")
    return key


_Point = tuple[int, int, int, int]


def _is_neutral(point: _Point) -> bool:
    return point[0] % _P == 0 and (point[1] - point[2]) % _P == 0


def _times(factor: int, point: _Point) -> _Point:
    found = (0, 1, 1, 0)
    while factor:
        if factor & 1:
            found = _sum(found, point)
        point = _sum(point, point)
        factor >>= 1
    return found


def _sum(left: _Point, right: _Point) -> _Point:
    """Add two points by the formula that holds for all of them (RFC 8032, 5.1.4)."""
    x1, y1, z1, t1 = left
    x2, y2, z2, t2 = right
    a, b = (y1 - x1) * (y2 - x2) % _P, (y1 + x1) * (y2 + x2) % _P
    c, d = 2 * t1 * t2 * _D % _P, 2 * z1 * z2 % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def is_signature(key: bytes, signature: bytes, data: bytes) -> bool:
    """Say whether this is an Ed25519 signature of `data` under a key that is not weak."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if len(signature) != 64:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(checked_key(key)).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def public_key_of(text: Any) -> bytes:
    """Return the 32 bytes of a key: base64, or a line of an OpenSSH public key. Raises ValueError."""
    if type(text) is not str:
        raise ValueError("a key is a text")
    words = text.split()
    if words and words[0] in SSH_KINDS and len(words) >= 2:
        return _ssh_key(decode_base64(words[1]), words[0])
    return decode_base64(text.strip())


SSH_NAMESPACE = b"eventlog-approval@v1"
SSH_TOKEN = "sk-ssh-ed25519@openssh.com"
SSH_KINDS = ("ssh-ed25519", SSH_TOKEN)
_SSH_APPLICATION = b"ssh:"
_SSH_HASHES = {b"sha512": hashlib.sha512, b"sha256": hashlib.sha256}


def is_ssh_signature(key: bytes, blob: bytes, data: bytes, key_kind: str = "ssh-ed25519") -> bool:
    """Say whether the blob is what `ssh-keygen -Y sign` makes of `data` with this key. Raises ValueError.

    A FIDO token signs SHA-256(application), flags, counter and the SHA-256 of what another key would sign (PROTOCOL.u2f
    of OpenSSH); its flags have to say that somebody was present (1), maybe verified (4), and nothing else.
    """
    if not blob.startswith(b"SSHSIG\0\0\0\1"):
        raise ValueError("no SSH signature of version 1")
    rest = blob[10:]
    parts = []
    for _ in range(5):
        part, rest = _ssh_string(rest)
        parts.append(part)
    public, namespace, reserved, hash_name, signed = parts
    kind, signature = _ssh_string(signed)
    signature, behind = _ssh_string(signature)
    is_token = key_kind == SSH_TOKEN
    if rest or len(behind) != 5 * is_token or reserved or kind != key_kind.encode() or hash_name not in _SSH_HASHES:
        raise ValueError("an SSH signature of another kind, or with something behind it")
    if is_token and behind[0] not in (1, 5):
        raise ValueError("a token that does not say that somebody was present, or says more")
    if namespace != SSH_NAMESPACE or _ssh_key(public, key_kind) != key:
        return False
    digest = _SSH_HASHES[hash_name](data).digest()
    stated = (namespace, b"", hash_name, digest)
    signed = b"SSHSIG" + b"".join(struct.pack(">I", len(part)) + part for part in stated)
    if is_token:
        signed = hashlib.sha256(_SSH_APPLICATION).digest() + behind + hashlib.sha256(signed).digest()
    return is_signature(key, signature, signed)


def _ssh_key(blob: bytes, key_kind: str) -> bytes:
    kind, rest = _ssh_string(blob)
    key, rest = _ssh_string(rest)
    if key_kind == SSH_TOKEN:
        application, rest = _ssh_string(rest)
        if application != _SSH_APPLICATION:
            raise ValueError("the key of a token for another application than ssh:")
    if kind != key_kind.encode() or rest or len(key) != 32:
        raise ValueError(f"no {key_kind} key")
    return key


def _ssh_string(data: bytes) -> tuple[bytes, bytes]:
    size = int.from_bytes(data[:4], "big")
    if len(data) < 4 + size:
        raise ValueError("cut short")
    return data[4 : 4 + size], data[4 + size :]


# ── Signed notes (C2SP signed-note, tlog-checkpoint, tlog-cosignature, tlog-proof) ───────────────────────────────────

_DASH = "\u2014"


@dataclass(frozen=True)
class Head:
    """A signed head: the origin, size and root of its three lines, its text and its signature lines."""

    origin: str
    size: int
    root: bytes
    text: bytes
    signatures: tuple[tuple[str, bytes, bytes], ...]  # key name, key id, signature


def parse_note_key(text: str, alg: int) -> NoteKey:
    """Return the verifier key `<name>+<key id>+<base64>` of this algorithm. Raises ValueError."""
    name, _, rest = text.strip().partition("+")
    id_text, _, key_text = rest.partition("+")
    data = decode_base64(key_text)
    if not _is_key_name(name) or len(data) != 33 or data[0] != alg:
        raise ValueError(f"no verifier key of the algorithm {alg}: {text[:PRINTED]}")
    key_id = hashlib.sha256(name.encode() + b"\n" + data).digest()[:4]
    if key_id.hex() != id_text:
        raise ValueError("the key id of the verifier key is not that of its name and key")
    return NoteKey(name, key_id, alg, checked_key(data[1:]))


def _is_key_name(name: str) -> bool:
    return bool(name) and "+" not in name and not any(mark.isspace() or not mark.isprintable() for mark in name)


def parse_head(note: bytes) -> Head:
    """Return the head that a note spells. Signatures are not checked here. Raises ValueError."""
    text = note.decode("utf-8")
    if any((ord(mark) < 32 and mark != "\n") or ord(mark) == 127 for mark in text):
        raise ValueError("a note has no control characters")
    body, blank, signatures = text.rpartition("\n\n")
    lines = (body + "\n").split("\n")
    if not blank or not signatures.endswith("\n") or len(lines) != 4 or lines[3]:
        raise ValueError("a head is three lines, a blank line, and signatures")
    origin, size_text, root_text = lines[:3]
    if not origin or not re.fullmatch(r"0|[1-9][0-9]{0,18}", size_text) or len(decode_base64(root_text)) != 32:
        raise ValueError("the lines of a head are its origin, its size and its root")
    lines = signatures[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise ValueError(f"more than {MAX_SIGNATURES} signatures")
    signed = tuple(_signature_line(line) for line in lines)
    return Head(origin, int(size_text), decode_base64(root_text), (body + "\n").encode(), signed)


def _signature_line(line: str) -> tuple[str, bytes, bytes]:
    dash, _, rest = line.partition(" ")
    name, _, signature = rest.partition(" ")
    if dash != _DASH or not _is_key_name(name):
        raise ValueError("a malformed signature line")
    data = decode_base64(signature)
    if len(data) < 5:
        raise ValueError("a signature that is too short")
    return name, data[:4], data[4:]


def signers_of(head: Head, keys: Sequence[NoteKey]) -> list[NoteKey]:
    """Return which of these keys have signed the head. Raises ValueError for a bad signature of one of them."""
    found = []
    for name, key_id, signature in head.signatures:
        for key in keys:
            if (key.name, key.id) == (name, key_id) and key not in found:
                if not _has_signed(key, signature, head.text):
                    raise ValueError(f"the signature by {name} is bad")
                found.append(key)
    return found


def _has_signed(key: NoteKey, signature: bytes, text: bytes) -> bool:
    if key.alg == 4:  # cosignature/v1: a time in seconds stands in front of the signature, and is signed
        stated = b"cosignature/v1\ntime %d\n" % int.from_bytes(signature[:8], "big")
        return len(signature) == 72 and is_signature(key.key, signature[8:], stated + text)
    return is_signature(key.key, signature, text)


def parse_hashes(lines: Sequence[str]) -> list[bytes]:
    """Return the hashes of a proof, a line of base64 each. Raises ValueError."""
    if len(lines) > MAX_PROOF:
        raise ValueError(f"a proof of more than {MAX_PROOF} hashes")
    hashes = [decode_base64(line) for line in lines]
    if any(len(each) != 32 for each in hashes):
        raise ValueError("a hash has 32 bytes")
    return hashes


def parse_inclusion(data: bytes) -> tuple[int, list[bytes], bytes]:
    """Return index, hashes and the note of a C2SP tlog-proof. Raises ValueError."""
    front, blank, note = data.decode("utf-8").partition("\n\n")
    lines = front.split("\n")
    if not blank or len(lines) < 2 or lines[0] != "c2sp.org/tlog-proof@v1":
        raise ValueError("no tlog-proof")
    match = re.fullmatch(r"index (0|[1-9][0-9]{0,18})", lines[1])
    if match is None:
        raise ValueError("a proof without the index of its leaf, or with extra data, which packs have not")
    return int(match.group(1)), parse_hashes(lines[2:]), note.encode()


def parse_growth(data: bytes) -> tuple[int, list[bytes], bytes]:
    """Return old size, hashes and what follows of a proof of consistency, spelled as by tlog-witness. ValueError."""
    front, _, rest = data.decode("utf-8").partition("\n\n")
    lines = front.rstrip("\n").split("\n")
    match = re.fullmatch(r"old (0|[1-9][0-9]{0,18})", lines[0])
    if match is None:
        raise ValueError("a proof of consistency begins with the old size")
    return int(match.group(1)), parse_hashes(lines[1:]), rest.encode()


# ── Checking a pack ──────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Body:
    """What an event says: its members as values and as bytes. `source` is where that was found.

    `plain` is the body itself; `remainder` the fields that say nothing of anybody, kept where a body was erased or is
    encrypted; `gone` nothing at all.
    """

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)


@dataclass
class Event:
    """An entry with what is left of its body."""

    entry: Entry
    body: Body

    def __str__(self) -> str:
        return str(self.entry)

    def get(self, name: str, default: Any = None) -> Any:
        return self.body.values.get(name, default)


@dataclass
class Case:
    """All that is known while a pack is checked."""

    pack: Pack
    trust: Trust
    report: Report
    head: Head | None = None
    run: list[Event] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)


def verify_pack(path: str, trust: Trust) -> Report:
    """Return all that can be found out about the pack at `path`. Raises OSError where there is nothing to read."""
    report = Report()
    os.stat(path)
    try:
        pack = FolderPack(path) if os.path.isdir(path) else ZipPack(path)
    except PackError as error:
        report["files"].fails(str(error), error.file)
        _say_the_rest(report)
        return report
    try:
        check_case(Case(pack, trust, report))
    finally:
        pack.close()
    return report


def check_case(case: Case) -> None:
    """Come to all verdicts. Whatever is in the pack, that ends with findings, and never with an error."""
    files = case.report["files"]
    try:
        _check(case)
    except PackError as error:
        files.fails(str(error), error.file)
    except ImportError:
        raise  # `cryptography` is missing, which says nothing of the pack
    except Exception as error:  # whatever a pack makes this program do, it is no pack that verifies
        files.fails(f"the pack cannot be read: {type(error).__name__}: {error}")
    _say_the_rest(case.report)


def _say_the_rest(report: Report) -> None:
    """Let no verdict be fine that was not come to."""
    for name, finding in report.findings.items():
        if not finding.says and not finding.problems:
            finding.says = "not looked at, because of what is wrong elsewhere"
            finding.cannot_tell(finding.says)
        elif not finding.says:
            finding.says = finding.problems[0].message
        if name == "files" and finding.problems:
            finding.says = finding.problems[0].message


def _check(case: Case) -> None:
    _check_files(case)
    _check_head(case)
    run = _read_stream(case, "entries.bin", is_run=True)
    log = _read_stream(case, "log-entries.bin", is_run=False)
    _check_place(case, run, log)
    erasures = _read_bodies(case, run, log)
    _check_log_ids(case)
    _check_log_keys(case)
    _check_kept_heads(case)
    _check_inclusion(case)
    _check_story(case)
    _check_approvals(case)
    _check_erasures(case, erasures)
    _check_artifacts(case)


# files


def _check_files(case: Case) -> None:
    finding = case.report["files"]
    for name in NEEDED:
        if name not in case.pack.sizes:
            raise PackError("the file is missing", name)
    manifest = _json_of(case.pack, "manifest.json", MAX_TABLE)
    if manifest.get("format") != FORMAT or type(manifest.get("version")) is not int:
        raise PackError("no evidence pack", "manifest.json")
    if manifest["version"] != VERSION:
        finding.cannot_tell(f"a pack of version {manifest['version']}; this program knows {VERSION}", "manifest.json")
    listed = _listed(manifest)
    for name in sorted(set(listed) ^ (set(case.pack.sizes) - {"manifest.json"})):
        finding.fails("the manifest names it, and it is missing" if name in listed else "no manifest names it", name)
    for name in sorted(set(listed) & set(case.pack.sizes)):
        try:
            digest = _digest_of(case.pack, name)
        except PackError as error:  # whoever needs it says so again
            finding.fails(str(error), error.file)
            continue
        if listed[name] != (case.pack.sizes[name], digest):
            finding.fails("it is not what the manifest says", name)
    case.report.run = manifest.get("run") if type(manifest.get("run")) is str else None
    if set(manifest) != {"format", "version", "run", "log_ids", "files"}:
        finding.fails("the manifest has other fields than it should", "manifest.json")
    finding.facts["log_ids"] = manifest.get("log_ids")
    finding.says = f"{len(case.pack.sizes)} files, as the manifest has them"


def _digest_of(pack: Pack, name: str) -> str:
    digest = hashlib.sha256()
    for piece in pack.pieces(name):
        digest.update(piece)
    return digest.hexdigest()


def _json_of(pack: Pack, name: str, limit: int) -> dict[str, Any]:
    try:
        value = parse_json(pack.read(name, limit), name)
    except ValueError as error:
        raise PackError(f"no JSON with one meaning: {error}", name) from error
    if not isinstance(value, dict):
        raise PackError("no JSON object", name)
    return value


def _listed(manifest: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return size and digest by name. Raises PackError."""
    found: dict[str, tuple[int, str]] = {}
    files = manifest.get("files")
    if not isinstance(files, list) or len(files) > MAX_FILES:
        raise PackError("the manifest lists no files", "manifest.json")
    for item in files:
        if not isinstance(item, dict) or set(item) != {"name", "size", "sha256"}:
            raise PackError("the manifest lists something that is no file", "manifest.json")
        if type(item["name"]) is not str or item["name"] in found:
            raise PackError("the manifest lists a file twice", "manifest.json")
        found[item["name"]] = (item["size"], item["sha256"])
    return found


# head, witnesses


def _check_head(case: Case) -> None:
    """Read the signed head, and who of those that the auditor trusts has signed it."""
    finding = case.report["head"]
    note = case.pack.read("checkpoint", MAX_TEXT)
    try:
        case.head = parse_head(note)
    except ValueError as error:
        finding.fails(f"no signed head: {error}", "checkpoint")
        return
    finding.facts.update(origin=case.head.origin, size=case.head.size, root=case.head.root.hex())
    _check_witnesses(case, case.head)


def _check_witnesses(case: Case, head: Head) -> None:
    finding = case.report["witnesses"]
    try:
        seen = signers_of(head, case.trust.witnesses)
    except ValueError as error:
        finding.fails(str(error), "checkpoint")
        return
    finding.is_none = not case.trust.quorum
    finding.says = f"{len(seen)} of the {len(case.trust.witnesses)} that you trust"
    finding.facts["names"] = sorted(key.name for key in seen)
    if len(seen) < case.trust.quorum:
        finding.fails(f"signed by {len(seen)} witnesses, and you ask for {case.trust.quorum}", "checkpoint")


def _check_log_keys(case: Case) -> None:
    """Check the signature of the head, under the keys that the auditor trusts, and those that they handed over to."""
    finding, head = case.report["head"], case.head
    if head is None:
        return
    if not case.trust.log_keys:
        finding.says = f"size {head.size}, origin {head.origin}; no key of yours to check it with"
        finding.cannot_tell("no trusted log key: give --log-key, from a source other than this pack", "checkpoint")
        return
    keys, until = _current_keys(case)
    try:
        signers = [key for key in signers_of(head, keys) if key.name == head.origin]
    except ValueError as error:
        finding.fails(str(error), "checkpoint")
        return
    good = [key for key in signers if head.size <= until.get(key.id, head.size)]
    if signers and not good:
        finding.fails(
            "the key that signed this head does not count for this size: it was replaced or revoked", "checkpoint"
        )
    elif not signers and _is_of_unknown_key(case, head):
        finding.cannot_tell(_unknown_key(case, head), "checkpoint")
    elif not signers:
        finding.fails("no log key that you trust has signed this head", "checkpoint")
    else:
        own = {key.key for key in case.trust.log_keys}
        how = "your key" if good[0].key in own else "a key that yours was rotated to"
        finding.says = f"size {head.size}, signed by {good[0].name} with {how}{_restores_said(case)}"
        finding.facts["key_id"] = good[0].id.hex()


def _restores(case: Case) -> list[Event]:
    return [event for event in case.log if event.entry.type == "log_restored"]


def _restores_said(case: Case) -> str:
    """Return which restores the log declares: whoever holds its key can invent one, and it stays in what is said."""
    restores = _restores(case)
    said = [
        f"; restored at position {event.entry.position}, what was lost ends at {event.get('size')}: "
        f"{event.get('reason')!s:.{PRINTED}}"
        for event in restores[-MAX_SHOWN:]
    ]
    more = len(restores) - len(said)
    return "".join(said) + (f"; and {more} restores before" if more else "")


def _is_of_unknown_key(case: Case, head: Head) -> bool:
    """Say whether the head is of what a restore began, and the auditor never had a key of that."""
    begun = {event.entry.log_id.hex() for event in _restores(case)}
    is_known = any(key.name == head.origin for key in case.trust.log_keys)
    return head.origin.rpartition("/")[2] in begun and not is_known


def _unknown_key(case: Case, head: Head) -> str:
    declared = [
        str(event.get("verifier_key"))
        for event in case.log
        if event.entry.type in ("log_key_declared", "log_key_rotated")
        and str(event.get("verifier_key")).partition("+")[0] == head.origin
    ]
    named = declared[-1] if declared else " or ".join(f"{name}+{id.hex()}+..." for name, id, _ in head.signatures[:3])
    return (
        f"the log was restored at position {_restores(case)[-1].entry.position}, and goes on under a key that yours "
        f"has not handed over to: if you know it from another source, give --log-key {named}"
    )


def _current_keys(case: Case) -> tuple[list[NoteKey], dict[bytes, int]]:
    """Return the trusted keys with those that they were rotated to, and the sizes up to which some of them count.

    A rotation at position p is signed by the key that it replaces, which counts for heads smaller than p from then on.
    The key that counts before a restore counts for the incarnation that this begins, under its name.
    """
    keys = list(case.trust.log_keys)
    until: dict[bytes, int] = {}
    for event in case.log:
        if event.entry.type == "log_key_rotated":
            for old in [key for key in keys if key.text == event.get("replaces") and key.id not in until]:
                if _is_rotation(event, old):
                    keys.append(parse_note_key(event.get("verifier_key"), 1))
                    until[old.id] = event.entry.position - 1
        elif event.entry.type == "log_key_revoked":
            for key in [key for key in keys if key.text == event.get("verifier_key")]:
                until[key.id] = min(_number(event.get("from_size")), until.get(key.id, 1 << 63))
        elif event.entry.type == "log_restored":
            keys += _carried(event, keys, [key for key in keys if key.id not in until])
    return keys, until


def _carried(restore: Event, keys: Sequence[NoteKey], current: Sequence[NoteKey]) -> list[NoteKey]:
    """Return the keys that go on behind a restore, under the names of what it began, and of what it says was lost."""
    previous, begun = str(restore.get("previous_log_id")), restore.entry.log_id.hex()
    of_previous = [key for key in current if key.name.rpartition("/")[2] == previous]
    of_begun = [key for key in current if key.name.rpartition("/")[2] == begun]
    pairs = [(key, log_id) for key in (of_previous or current)[-1:] for log_id in (previous, begun)]
    pairs += [(key, previous) for key in of_begun]
    carried = [_renamed(key, log_id) for key, log_id in pairs]
    return [key for key in dict.fromkeys(carried) if key not in keys and _is_key_name(key.name)]


def _renamed(key: NoteKey, log_id: str) -> NoteKey:
    name = f"{key.name.rpartition('/')[0]}/{log_id}"
    data = bytes([key.alg]) + key.key
    return NoteKey(name, hashlib.sha256(name.encode() + b"\n" + data).digest()[:4], key.alg, key.key)


def _is_rotation(event: Event, old: NoteKey) -> bool:
    stated = f"eventlog/log-key/v1\n{event.get('replaces')}\n{event.get('verifier_key')}\n"
    try:
        return is_signature(old.key, decode_base64(event.get("signature")), stated.encode())
    except ValueError:
        return False


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("no number")
    return value


def _check_kept_heads(case: Case) -> None:
    """Compare the head with those that the auditor kept: the smaller one has to be where the larger one began."""
    finding, head = case.report["head"], case.head
    if head is None or not case.trust.heads:
        return
    kept, proofs = _kept(case, head)
    proofs += _growths_in(case)
    lost = 0
    for name, other in kept:
        small, large = sorted(((head.size, head.root), (other.size, other.root)))
        if _is_lost(case, name, other):
            lost += 1
        elif other.origin != head.origin and not _is_before(case, other):
            finding.cannot_tell(f"the head in {name} is of another log: {other.origin}", name)
        elif small[0] == large[0]:
            if small[1] != large[1]:
                finding.fails(f"the head in {name} has the same size and another root: the log was forked", name)
        elif not _has_grown(small, large, proofs):
            missing = f"no proof from {small[0]} to {large[0]}: ask for one, and give it with --head"
            finding.cannot_tell(f"the head in {name} cannot be compared; {missing}", name)
        elif not any(
            is_consistent(small[0], small[1], large[0], large[1], hashes)
            for old, size, root, hashes in proofs
            if (old, size, root) == (small[0], *large)
        ):
            finding.fails(f"the head in {name} is not one of this log: it was forked or cut", name)
    if kept and lost == len(kept):
        finding.cannot_tell("all heads that you kept are of what a restore declares lost: none vouches for this log")
    finding.facts.update(kept_heads=len(kept), lost_heads=lost)


def _endings(case: Case, other: Head) -> list[tuple[int, Event]]:
    """Return the restores that ended the incarnation of a head, each with the last position that was left of it."""
    log_id, found = other.origin.rpartition("/")[2], []
    earliest = min((case.run[0], *case.log[:1]), key=lambda event: event.entry.position).entry
    before = None if earliest.type == "log_restored" else earliest.log_id.hex()
    for event in _restores(case):
        if log_id in (before, event.get("previous_log_id")):
            is_left = before in (None, log_id)
            found.append((event.entry.position - 1 if is_left else 0, event))
        before = event.entry.log_id.hex()
    return found


def _is_before(case: Case, other: Head) -> bool:
    """Say whether a head is of an earlier incarnation, and of nothing but what is left of it in this log."""
    return any(other.size <= last for last, _ in _endings(case, other))


def _is_lost(case: Case, name: str, other: Head) -> bool:
    """Say whether a head is of more than a restore has left; notes what contradicts what that says of it."""
    finding = case.report["head"]
    endings = _endings(case, other)
    if not endings or _is_before(case, other):
        return False
    restore = endings[-1][1]
    size, root = restore.get("size"), restore.get("root")
    if type(size) is not int or size < other.size:
        finding.fails(f"the head in {name} is of more than the restore declares lost: the log was cut", name)
    elif size == other.size and _names(restore, other) and root != other.root.hex():
        finding.fails(f"the head in {name} has another root than the restore names: the log was forked", name)
    return True


def _names(restore: Event, other: Head) -> bool:
    return bool(restore.get("previous_log_id") == other.origin.rpartition("/")[2])


def _has_grown(
    small: tuple[int, bytes], large: tuple[int, bytes], proofs: Sequence[tuple[int, int, bytes, list[bytes]]]
) -> bool:
    return any((old, size, root) == (small[0], *large) for old, size, root, _ in proofs)


def _kept(case: Case, head: Head) -> tuple[list[tuple[str, Head]], list[tuple[int, int, bytes, list[bytes]]]]:
    """Return the heads in the auditor's files, and the proofs of growth: old size, size, root, hashes."""
    keys = _current_keys(case)[0]
    kept: list[tuple[str, Head]] = []
    proofs: list[tuple[int, int, bytes, list[bytes]]] = []
    for name, data in case.trust.heads:
        try:
            if data.startswith(b"{"):
                kept += [(name, other) for other in _of_file(case, data, head, keys)]
                continue
            growth = parse_growth(data) if data.startswith(b"old ") else None
            other = _signed(parse_head(data if growth is None else growth[2]), keys)
        except ValueError as error:
            case.report["head"].cannot_tell(f"the head in {name} says nothing: {error}", name)
            continue
        kept.append((name, other))
        if growth is not None:
            proofs.append((growth[0], other.size, other.root, growth[1]))
    return kept, proofs


def _of_file(case: Case, data: bytes, head: Head, keys: Sequence[NoteKey]) -> list[Head]:
    """Return the heads of a signer's file that this one has to agree with. Raises ValueError."""
    newest, older = _heads_in(data, head, {old for old, *_ in _growths_in(case)})
    if any(other.origin == head.origin for other in newest):  # of earlier incarnations it stands for what is left
        newest = [other for other in newest if other.origin == head.origin or not _is_before(case, other)]
    signed = [other for other in older if any(key.name == other.origin for key in signers_of(other, keys))]
    return [*(_signed(other, keys) for other in newest), *signed]


def _signed(head: Head, keys: Sequence[NoteKey]) -> Head:
    if not [key for key in signers_of(head, keys) if key.name == head.origin]:
        raise ValueError(f"no log key that you trust has signed it (size {head.size}, {head.origin})")
    return head


def _heads_in(data: bytes, head: Head, provable: set[int]) -> tuple[list[Head], list[Head]]:
    """Return the heads of a signer's file that say something of this one: the newest, and older ones. ValueError.

    A line is a JSON object with `at_us` and one of `note`, `begins`, `prefix`, `moved_to`; what a crash has left behind
    the last newline is none. The heads of a log only grow, so the newest one that is not larger than `head` stands for
    those before it, of the other incarnations the last one; older ones are those from which a proof of the pack leads.
    """
    last: dict[str, Head] = {}
    newest: dict[str, Head] = {}
    found: dict[tuple[str, int], Head] = {}
    if data.count(b"\n") > MAX_HEADS:
        raise ValueError(f"more than {MAX_HEADS} lines: give the last of them")
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        other = _head_in(line, number)
        if other is None:
            continue
        before = last.get(other.origin)
        if before is not None and (before.size, before.root) != (other.size, other.root) and other.size <= before.size:
            raise ValueError(f"line {number}: a head that does not go on from the one before it")
        last[other.origin] = other
        if len(last) > MAX_SIGNATURES:
            raise ValueError(f"heads of more than {MAX_SIGNATURES} logs")
        if other.size in provable:
            found[other.origin, other.size] = other
        if other.origin != head.origin or other.size <= head.size or before is None:
            newest[other.origin] = other
    if not newest:
        raise ValueError("it holds no head")
    return list(newest.values()), list(found.values())


def _head_in(line: bytes, number: int) -> Head | None:
    """Return the head of a line, if it has one. Raises ValueError."""
    value = parse_json(line, "a line of heads")
    if not isinstance(value, dict) or type(value.get("at_us")) is not int or len(value) != 2:
        raise ValueError(f"line {number} is none of a file of heads")
    if "note" in value and type(value["note"]) is str and len(value["note"]) <= MAX_TEXT:
        return parse_head(value["note"].encode())
    if not set(value) & {"begins", "prefix", "moved_to"}:
        raise ValueError(f"line {number} is none of a file of heads")
    return None


def _growths_in(case: Case) -> list[tuple[int, int, bytes, list[bytes]]]:
    """Return the proofs of growth to the head of the pack that are in it. Those that say nothing prove nothing."""
    found = []
    for name in sorted(case.pack.sizes):
        if name.startswith("consistency/") and case.head is not None:
            growth = _growth(case, name)
            if growth is not None:
                found.append((growth[0], case.head.size, case.head.root, growth[1]))
    return found


def _growth(case: Case, name: str) -> tuple[int, list[bytes]] | None:
    try:
        old, hashes, rest = parse_growth(case.pack.read(name, MAX_TEXT))
        if name != f"consistency/{old}.proof" or rest:
            raise ValueError("its name is that of another proof, or something follows it")
    except ValueError as error:
        case.report["inclusion"].fails(f"no proof of consistency: {error}", name)
        return None
    return old, hashes


# integrity


def _read_stream(case: Case, file: str, *, is_run: bool) -> list[Entry]:
    """Return the entries of a file, of one stream, from its first to its last, each linked to the one before."""
    finding = case.report["integrity"]
    entries: list[Entry] = []
    before = NO_HASH
    try:
        for data in split_entries(case.pack.read(file, MAX_TABLE)):
            entry = parse_entry(data)
            if entry.version != len(entries) + 1:
                finding.fails(f"version {len(entries) + 1} is missing", file, str(entry), "version")
            if entry.prev_in_stream != before:
                finding.fails("it is not linked to the entry before it", file, str(entry), "prev_in_stream")
            if entries and entry.stream != entries[0].stream:
                finding.fails("it is of another stream", file, str(entry), "stream")
            if entries and entry.position <= entries[-1].position:
                finding.fails("its position is not behind the one before it", file, str(entry), "position")
            entries.append(entry)
            before = entry.leaf
    except ValueError as error:
        finding.fails(f"entry {len(entries) + 1} of the file: {error}", file)
        raise PackError(f"entry {len(entries) + 1} is none: {error}", file) from error
    if is_run and not entries:
        raise PackError("a run has entries", file)
    return entries


def _check_place(case: Case, run: list[Entry], log: list[Entry]) -> None:
    """Check that the streams are those of this run and of the log, and that nothing is claimed twice."""
    finding = case.report["integrity"]
    stream = run[0].stream
    if not stream.startswith("run:"):
        finding.fails("these are not the entries of a run", "entries.bin", field="stream")
    if stream != f"run:{case.report.run}":
        finding.fails("the manifest names another run than the entries", "manifest.json", field="run")
    case.report.run = stream[len("run:") :]
    if case.trust.run is not None and stream != f"run:{case.trust.run}":
        finding.fails(f"this is not the run that you asked for, {case.trust.run}", "entries.bin", field="stream")
    if log and log[0].stream != "$log":
        finding.fails("these are not the entries of the log's own stream", "log-entries.bin", field="stream")
    for name in ("position", "event_id"):
        if len({getattr(entry, name) for entry in (*run, *log)}) != len(run) + len(log):
            finding.fails(f"two entries have the same {name}", "entries.bin", field=name)
    finding.facts.update(entries=len(run), log_entries=len(log))
    finding.says = (
        f"{len(run)} entries of the run {case.report.run}, {len(log)} of the log's own stream, and their bodies"
    )


def _check_log_ids(case: Case) -> None:
    """Check that each entry is of the incarnation of the log at its position, and the head of the last one."""
    finding = case.report["integrity"]
    begun: list[tuple[int, bytes]] = []
    for event in case.log:
        if event.entry.type == "log_restored":
            begun.append((event.entry.position, event.entry.log_id))
    if case.head is None:
        return
    last = begun[-1][1] if begun else case.run[-1].entry.log_id
    if case.head.origin.rpartition("/")[2] != last.hex():
        case.report["head"].fails("the head is of another log than the entries", "checkpoint", field="origin")
    earliest = min((case.run[0], *case.log[:1]), key=lambda event: event.entry.position).entry
    first = earliest.log_id
    stated = case.report["files"].facts["log_ids"]
    is_known = not begun or earliest.position < begun[0][0]
    before = [[1, first.hex()]] if is_known else stated[:1] if isinstance(stated, list) else []
    if stated != [*before, *([position, log_id.hex()] for position, log_id in begun)]:
        finding.fails("the manifest names other logs than the entries", "manifest.json", field="log_ids")
    positions = [position for position, _ in begun]
    for event in (*case.run, *case.log):
        count = bisect.bisect_right(positions, event.entry.position)
        if event.entry.log_id != (begun[count - 1][1] if count else first):
            finding.fails("it is an entry of another log", _file_of(event), str(event), "log_id")


def _file_of(event: Event) -> str:
    return "log-entries.bin" if event.entry.stream == "$log" else "entries.bin"


def _read_bodies(case: Case, run: list[Entry], log: list[Entry]) -> dict[int, Event]:
    """Read the bodies, each compared with its entry. Returns the erasures by the position of what they erased."""
    erasures: dict[int, Event] = {}
    for entry in log:
        event = Event(entry, _body_of(case, "log", entry, {}))
        case.log.append(event)
        if entry.type == "payload_erased" and type(event.get("position")) is int:
            erasures[event.get("position")] = event
        if event.body.source != "plain":
            case.report["integrity"].fails(
                "an event of the log's own stream without a body", "log-entries.bin", str(entry)
            )
    case.run.extend(Event(entry, _body_of(case, "run", entry, erasures)) for entry in run)
    _check_strays(case)
    return erasures


def _check_strays(case: Case) -> None:
    """Let no body be in the pack that belongs to no entry."""
    kinds = {"run": case.run, "log": case.log}
    for name in case.pack.sizes:
        folder, _, rest = name.partition("/")
        if folder == "payload":
            stream, _, file = rest.partition("/")
            version = int(file.partition(".")[0])
            if version > len(kinds[stream]):
                case.report["integrity"].fails("a body of no entry", name)


def _body_of(case: Case, folder: str, entry: Entry, erasures: dict[int, Event]) -> Body:
    path = f"payload/{folder}/{entry.version}"
    have = [end for end in ("json", "salt", "sealed") if f"{path}.{end}" in case.pack.sizes]
    expected = ["json", "salt"] if entry.body_kind == PLAIN else ["sealed"]
    if not have:
        erasure = erasures.get(entry.position)
        return Body("gone") if erasure is None else _parsed(case, entry, erasure.body.raw.get("remainder", b""), path)
    if have != expected:
        case.report["integrity"].fails("the body is not whole, or of another kind", path, str(entry), "body_kind")
        return Body("gone")
    if entry.body_kind == PLAIN:
        return _plain_body(case, entry, path)
    return _sealed_body(case, entry, path)


def _plain_body(case: Case, entry: Entry, path: str) -> Body:
    finding = case.report["integrity"]
    data = case.pack.read(path + ".json", MAX_BODY)
    salt = case.pack.read(path + ".salt", 64)
    if len(data) != entry.body_len or len(salt) != 16:
        finding.fails("the body or its salt has another size", path + ".json", str(entry), "body_len")
    if hashlib.sha256(CONTENT_LABEL + salt + data).digest() != entry.content_commit:
        finding.fails("the body is not what the entry commits to", path + ".json", str(entry), "content_commit")
        return Body("gone")
    return _parsed(case, entry, data, path + ".json", source="plain")


def _sealed_body(case: Case, entry: Entry, path: str) -> Body:
    finding = case.report["integrity"]
    data = case.pack.read(path + ".sealed", MAX_BODY)
    if len(data) != entry.body_len:
        finding.fails("the encrypted body has another size", path + ".sealed", str(entry), "body_len")
    if hashlib.sha256(STORED_LABEL + data).digest() != entry.stored_hash:
        finding.fails("the encrypted body is not the one of the entry", path + ".sealed", str(entry), "stored_hash")
        return Body("gone")
    if len(data) < SEALED.size or data[0] != 1:
        finding.fails("no encrypted body of layout 1", path + ".sealed", str(entry))
        return Body("gone")
    commit, size = SEALED.unpack_from(data)[3:]
    if commit != entry.content_commit:
        finding.fails("it commits to another content than the entry", path + ".sealed", str(entry), "content_commit")
    return _parsed(case, entry, data[SEALED.size : SEALED.size + size], path + ".sealed")


def _parsed(case: Case, entry: Entry, data: bytes, file: str, source: str = "remainder") -> Body:
    if not data:
        return Body("gone")
    try:
        members = members_of(data, "the body")
    except ValueError as error:
        case.report["integrity"].fails(f"the body has no one meaning: {error}", file, str(entry))
        return Body("gone")
    values = {name: value for name, (value, _) in members.items()}
    if source == "remainder" and not _is_left(REMAINS.get(entry.type, ""), values):
        case.report["integrity"].fails("more is left of the body than an erasure leaves", file, str(entry))
        return Body("gone")
    return Body(source, values, {name: raw for name, (_, raw) in members.items()})


# what stays of a body that is erased or encrypted: `name`, and after `=` what may stand there, if not anything

ERASED = "[erased]"
CODE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")

REMAINS: dict[str, str] = {
    "action_conflict": "step action op_key reason=text code=code",
    "action_executed": "step action op_key not_stored=erased",
    "action_failed": "step action op_key error=failure is_final",
    "action_recovered": "step action op_key not_stored=erased",
    "action_replayed": "step reason=code",
    "approval_expired": "step request_id expires_at_us",
    "approval_recorded": (
        "step request_id decision=code approval_hash actor_source=code roles is_deciding level envelope=envelope"
    ),
    "approval_revoked": "step request_id actor_source=code",
    "checkpoint_saved": (
        "status state_version waiting=waiting also_waiting=waiting definition=definition input=inputs "
        "parent=parent committed is_released snapshot_hash"
    ),
    "child_finished": "key child_run_id status result=erased error=failure",
    "child_started": "key child_run_id workflow relation input group",
    "claim_renewed": "epoch deadline_us",
    "compensation_executed": "step action op_key compensates not_stored=erased",
    "compensation_failed": "step action op_key compensates error=failure is_final",
    "compensation_started": (
        "step op_key attempt epoch owner=owner deadline_us input_hash key_until_us action compensates"
    ),
    "outcome_reconciled": "step action op_key verdict=code status evidence=text actor_source=code",
    "outcome_unknown": "step action op_key why=text strays_are_over",
    "proposal_recorded": (
        "step request_id proposal=proposal proposal_hash policy=policy expires_at_us supersedes group action_sha256"
    ),
    "proposal_rejected": (
        "step phase=code reason=code action current_hash stored_hash approval_hash current_request_id "
        "approved_request_id"
    ),
    "proposal_verified": "step phase=code proposal_hash",
    "result_rejected": "step reason=code rejected=code op_key epoch attempt",
    "resume_rejected": "step reason=code status=code",
    "resume_started": "step op_key attempt epoch owner=owner deadline_us input_hash key_until_us approval_hash",
    "run_cancelled": "actor_source=code",
    "run_claimed": "epoch owner=owner deadline_us is_stray",
    "run_completed": "result=erased",
    "run_failed": "error=failure status",
    "signal_received": "name payload=erased",
    "signal_rejected": "name key reason=text",
    "step_completed": "name key kind=code output=erased attempt input group",
    "step_failed": "name key kind=code attempt error=failure is_final retry_at_us input group",
    "step_started": "name key attempt",
    "timer_fired": "key",
    "timer_set": "key due_us group",
    "transition_rejected": "step reason=code attempted_decision=code current_status=code existing_approval=code",
}

OBJECTS: dict[str, str] = {
    "definition": "workflow fingerprint version steps",
    "failure": "code=code message=text type=code",
    "owner": "host boot lock",
    "parent": "run_id step root_run_id relation",
    "policy": "required roles separation_of_duties level",
    "waiting": "type node_id approval_id signal due_us child_run_id",
}
"""The same for the objects in them, and for each object of a list."""


def _is_left(rules: str, values: dict[str, Any]) -> bool:
    """Say whether these members are what an erasure leaves: no more than names, numbers, digests and codes."""
    known = dict(rule.partition("=")[::2] for rule in rules.split())
    return all(name in known and _may_stay(known[name], value) for name, value in values.items())


def _may_stay(rule: str, value: Any) -> bool:
    if rule in OBJECTS:
        objects = value if isinstance(value, list) else [value]
        is_absent = value in (None, ERASED)
        return is_absent or all(isinstance(each, dict) and _is_left(OBJECTS[rule], each) for each in objects)
    if rule == "code":
        return value in (None, ERASED) or (isinstance(value, str) and CODE.fullmatch(value) is not None)
    if rule == "proposal":
        action = value.get("action") if isinstance(value, dict) else None
        return bool(value == {"action": action, "args": {ERASED: None}, "output": ERASED})
    if rule == "envelope":
        kind = value.get("payloadType") if isinstance(value, dict) else None
        return value is None or bool(value == {"payload": "", "payloadType": kind, "signatures": []})
    return value in {"": (value,), "text": (None, ERASED), "erased": (ERASED,), "inputs": ([ERASED],)}[rule]


# inclusion


def _check_inclusion(case: Case) -> None:
    finding = case.report["inclusion"]
    if case.head is None:
        finding.cannot_tell("there is no head to be included in", "checkpoint")
        return
    _check_proof(case, "proof.tlog-proof", case.run[-1].entry, case.head)
    if case.log:
        _check_proof(case, "log-proof.tlog-proof", case.log[-1].entry, case.head)
    elif "log-proof.tlog-proof" in case.pack.sizes:
        finding.fails("a proof for an entry that is not here", "log-proof.tlog-proof")
    shown = f"and of the log's own stream up to version {len(case.log)}" if case.log else "and nothing of the log's own"
    finding.says = f"the run up to version {len(case.run)}, {shown}, in the tree of {case.head.size}"


def _check_proof(case: Case, file: str, entry: Entry, head: Head) -> None:
    finding = case.report["inclusion"]
    try:
        index, hashes, note = parse_inclusion(case.pack.read(file, MAX_TEXT))
    except ValueError as error:
        finding.fails(f"no proof of inclusion: {error}", file)
        return
    if note != case.pack.read("checkpoint", MAX_TEXT):
        finding.fails("the proof is for another head than that of the pack", file)
    if index != entry.position - 1:
        finding.fails("the proof is for another position", file, str(entry), "position")
    if not is_included(entry.position - 1, entry.leaf, head.size, head.root, hashes):
        finding.fails("the entry is not in the tree of the head", file, str(entry))


# story: what was proposed, decided and done


@dataclass
class Vote:
    """One decision on a request, as it stands in the run."""

    event: Event
    decision: str
    actor: str | None
    is_deciding: bool
    level: int
    begun: list[Event] = field(default_factory=list)  # the intents that rested on it


@dataclass
class Request:
    """What a run asked for: one proposal, the decisions on it, and the attempts at its effect."""

    event: Event
    id: Any
    hash: Any
    action: Any
    output: Any
    terms: dict[str, Any]
    proposers: set[str]
    expires_at_us: Any
    votes: list[Vote] = field(default_factory=list)  # those that stand
    decisions: list[Vote] = field(default_factory=list)  # all that there ever were
    op_keys: set[str] = field(default_factory=set)
    is_over: bool = False

    @property
    def is_approved(self) -> bool:
        if self.is_over or any(vote.decision != "approve" for vote in self.votes):
            return False
        if any(vote.actor is None and vote.is_deciding for vote in self.votes):
            return True  # a rule decided
        return bool(len({vote.actor for vote in self.votes}) >= self.terms["required"])


TERMS: dict[str, Any] = {"required": 1, "roles": [], "separation_of_duties": False, "level": 0}
SETTLING = ("action_executed", "action_recovered")
TYPES = frozenset(
    """
    action_conflict action_executed action_failed action_recovered action_replayed approval_expired
    approval_recorded approval_revoked checkpoint_saved child_finished child_started claim_renewed
    compensation_executed compensation_failed compensation_started outcome_reconciled outcome_unknown
    proposal_recorded proposal_rejected proposal_verified result_rejected resume_rejected resume_started
    run_cancelled run_claimed run_completed run_failed signal_received signal_rejected step_completed step_failed
    step_started timer_fired timer_set transition_rejected
    """.split()
)
LOG_TYPES = frozenset(
    """
    approver_enrolled approver_revoked barrier_recorded log_key_declared log_key_revoked log_key_rotated
    log_restored payload_erased subject_erased
    """.split()
)
CRITICAL = frozenset(
    """
    proposal_recorded approval_recorded resume_started action_executed action_recovered compensation_started
    compensation_executed
    """.split()
)


class Story:
    """The fold of a run, as far as it says what may be done and what was."""

    def __init__(self, case: Case) -> None:
        self.finding = case.report["story"]
        self.case = case
        self.open: dict[Any, Request] = {}  # by step
        self.begun: set[Any] = set()
        self.undoing: set[str] = set()
        self.done = 0
        self.blind: set[Any] = set()  # steps of which something is gone that decides

    def tell(self, event: Event) -> None:
        """Take the next event of the run."""
        step = event.get("step")
        if event.entry.type not in TYPES or event.entry.schema_version != 1:
            self.finding.cannot_tell("an event that this program does not know", "entries.bin", str(event), "type")
        elif event.body.source == "gone":
            if event.entry.type in CRITICAL:
                self.blind.add(None)
                self.finding.cannot_tell("what it said is gone, and it decides", _payload_of(event), str(event))
        elif type(step) is not str and step is not None:
            self.finding.fails("the step is no text", _payload_of(event), str(event), "step")
        elif event.entry.type == "proposal_recorded":
            self._proposed(event, step)
        else:
            self._of_request(event, step)

    def _of_request(self, event: Event, step: Any) -> None:
        kind, request = event.entry.type, self.open.get(step)
        if kind in ("compensation_started", "compensation_executed"):
            self._undone(event)
        elif request is None:
            if kind in CRITICAL or kind in ("approval_revoked", "approval_expired"):
                self._wrong(event, "nothing was proposed that this is about", "step")
        elif kind == "approval_recorded":
            self._decided(event, request)
        elif kind == "approval_revoked":
            request.votes.clear()
        elif kind == "approval_expired":
            request.is_over = True
        elif kind == "resume_started":
            self._begun(event, request)
        elif kind in SETTLING:
            self._done(event, request)

    def _wrong(self, event: Event, message: str, name: str) -> None:
        if self.blind:
            self.finding.cannot_tell(f"{message}; but not all of the run is left", _payload_of(event), str(event), name)
        else:
            self.finding.fails(message, _payload_of(event), str(event), name)

    def _proposed(self, event: Event, step: Any) -> None:
        before = self.open.get(step)
        raw, stated = event.body.raw.get("proposal"), event.get("proposal_hash")
        proposal = event.get("proposal") if isinstance(event.get("proposal"), dict) else {}
        if event.body.source == "plain":
            if raw is None or hashlib.sha256(raw).hexdigest() != stated:
                self._wrong(event, "the proposal has another hash than the event says", "proposal_hash")
            if set(proposal) != {"action", "args", "output"}:
                self._wrong(event, "a proposal is an action, its args and an output", "proposal")
        proposers = {event.entry.actor} | (before.proposers if before is not None else set())
        action, output = proposal.get("action"), proposal.get("output")
        terms = self._terms(event)
        request = Request(
            event, event.get("request_id"), stated, action, output, terms, proposers, event.get("expires_at_us")
        )
        self.open[step] = request
        self.case.requests.append(request)

    def _terms(self, event: Event) -> dict[str, Any]:
        terms = event.get("policy")
        terms = {} if terms is None else terms
        if not isinstance(terms, dict) or set(terms) - set(TERMS):
            self.finding.cannot_tell("terms that this program does not know", _payload_of(event), str(event), "policy")
            terms = {}
        found = {**TERMS, **terms}
        if any(type(found[name]) is not type(TERMS[name]) for name in TERMS):
            self._wrong(event, "terms that are none", "policy")
            found = dict(TERMS)
        return found

    def _decided(self, event: Event, request: Request) -> None:
        if event.get("request_id") != request.id:
            self._wrong(event, "it decides on another request than the run asks", "request_id")
        if event.get("approval_hash") != request.hash:
            self._wrong(event, "it decides on another proposal than was made", "approval_hash")
        actor = None if event.get("actor_source") == "policy" else event.entry.actor
        level = event.get("level", 0)
        vote = Vote(event, event.get("decision"), actor, event.get("is_deciding", True) is True, level)
        if type(level) is not int or not 0 <= level <= 3:
            self._wrong(event, "a level is 0 to 3", "level")
            vote.level = 0
        if vote.decision == "approve":
            self._check_terms(vote, request)
        request.votes.append(vote)
        request.decisions.append(vote)

    def _check_terms(self, vote: Vote, request: Request) -> None:
        event, terms = vote.event, request.terms
        if request.is_over:
            self._wrong(event, "it approves what had expired", "request_id")
        if any(vote.actor == other.actor for other in request.votes):
            self._wrong(event, "the same actor approves twice", "actor")
        if terms["separation_of_duties"] and vote.actor in request.proposers:
            self._wrong(event, "who proposed approves, which the terms of the request forbid", "actor")
        if terms["roles"] and vote.actor is not None and not _common(event.get("roles"), terms["roles"]):
            self._wrong(event, "the approver has none of the roles that the terms ask for", "roles")
        if vote.level < terms["level"]:
            self._wrong(event, f"an approval of level {vote.level}, and the terms ask for {terms['level']}", "level")
        if _is_later(event, request.expires_at_us):
            self._wrong(event, "it approves after the request had expired", "expires_at_us")

    def _begun(self, event: Event, request: Request) -> None:
        if not request.is_approved:
            self._wrong(
                event, "it begins what was not approved, or not by as many as the terms ask for", "approval_hash"
            )
        if event.get("approval_hash") != request.hash or event.get("input_hash") != request.hash:
            self._wrong(event, "what runs is not what was approved", "input_hash")
        for vote in request.votes:
            vote.begun.append(event)
        op_key = event.get("op_key")
        if request.op_keys and op_key not in request.op_keys:
            self._wrong(event, "another identity of the effect than that of the attempt before", "op_key")
        request.op_keys.add(op_key if type(op_key) is str else "")
        self.begun |= request.op_keys

    def _done(self, event: Event, request: Request) -> None:
        self.done += 1
        if event.get("op_key") not in request.op_keys:
            self._wrong(event, "it was done, and never begun", "op_key")
        if request.action is not None and event.get("action") != request.action:
            self._wrong(event, "another action was done than was approved", "action")

    def _undone(self, event: Event) -> None:
        if event.get("compensates") not in self.begun:
            self._wrong(event, "it undoes what was never begun", "compensates")
        if event.entry.type == "compensation_started":
            self.undoing.add(str(event.get("op_key")))
        elif event.get("op_key") not in self.undoing:
            self._wrong(event, "it was undone, and that was never begun", "op_key")


def _check_story(case: Case) -> None:
    story = Story(case)
    for event in case.run:
        story.tell(event)
    for event in case.log:
        if event.entry.type not in LOG_TYPES or event.entry.schema_version != 1:
            story.finding.cannot_tell("an event that this program does not know", "log-entries.bin", str(event), "type")
    approved = sum(request.is_approved for request in case.requests)
    last = case.run[-1].entry
    story.finding.says = (
        f"{len(case.requests)} proposed, {approved} approved, {story.done} executed; "
        f"last event {last.type} at {_exact_time(last.recorded_at_us)}"
    )
    story.finding.facts.update(proposed=len(case.requests), approved=approved, executed=story.done, last=last.type)


def _payload_of(event: Event) -> str:
    folder = "log" if event.entry.stream == "$log" else "run"
    return f"payload/{folder}/{event.entry.version}"


def _common(some: Any, others: Any) -> bool:
    return isinstance(some, list) and any(each in others for each in some)


def _is_later(event: Event, end_us: Any) -> bool:
    """Say whether it was recorded when its time was over; the log takes nothing then, wherever its clock stands."""
    return type(end_us) is int and event.entry.recorded_at_us >= end_us


# approvals

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
APPROVAL_TYPE = "urn:eventlog:approval:v1"
ENROLMENT_TYPE = "urn:eventlog:enrolment:v1"
STATEMENT_FIELDS = frozenset(
    """
    decision request_id log_id run_id proposal_position proposal_leaf proposal_sha256 action action_sha256 output
    policy_id policy_sha256 requester approver key_id roles reason nonce not_after_us max_uses displayed head
    """.split()
)
ENROLMENT_FIELDS = frozenset(
    """
    approver key_id log_id challenge not_after_us
    """.split()
)


@dataclass
class Enrolment:
    """That the log says that an approver holds a key."""

    approver: str
    key: bytes
    kind: str
    level: int
    position: int
    roles: list[str]


def _check_approvals(case: Case) -> None:
    finding = case.report["approvals"]
    enrolled, revoked = _enrolments(case)
    each: list[dict[str, Any]] = []
    expected = set()
    for request in case.requests:
        for vote in request.decisions:
            each.append(_check_approval(case, vote, request, enrolled, revoked))
            if _envelope_of(vote.event) is not None:
                expected.add(f"approvals/{vote.event.entry.version}.dsse.json")
    for name in sorted(case.pack.sizes):
        if name.startswith("approvals/") and name not in expected:
            finding.fails("a signed approval that no event of the run holds", name)
    finding.is_none = not each
    finding.facts["each"] = each
    levels = ", ".join(f"{_shown_level(facts)} by {facts['approver']}" for facts in each)
    shown = f"; the log's own stream is shown up to version {len(case.log)}" if enrolled else ""
    finding.says = (levels or "nobody approved anything") + shown


def _envelope_of(event: Event) -> bytes | None:
    """Return what was signed, as the event holds it; what an erasure left of an event holds no signature."""
    is_there = event.body.source == "plain" and event.get("envelope") is not None
    return event.body.raw["envelope"] if is_there else None


def _shown_level(facts: dict[str, Any]) -> str:
    return f"{facts['decision']} L{facts['level']} ({facts['key']})"


def _check_approval(
    case: Case,
    vote: Vote,
    request: Request,
    enrolled: dict[str, Enrolment],
    revoked: dict[str, int],
) -> dict[str, Any]:
    """Check one decision and return what is said of it.

    That it is used once follows: its nonce is the id of the event, and no two events have the same.
    """
    event, finding = vote.event, case.report["approvals"]
    file, claimed = f"approvals/{event.entry.version}.dsse.json", event.get("level", 0)
    facts: dict[str, Any] = {
        "position": event.entry.position,
        "request_id": request.id,
        "decision": event.get("decision"),
        "approver": "a rule" if event.get("actor_source") == "policy" else event.entry.actor,
        "level": claimed if type(claimed) is int else 0,
        "key": "no signature",
    }
    problems = len(finding.problems)
    if _envelope_of(event) is not None:
        level, facts["key"] = _check_envelope(case, vote, request, enrolled, revoked, file)
        facts["level"] = min(facts["level"], level)
    elif facts["level"] > (event.get("actor_source") == "authenticated"):
        if event.body.source == "plain":
            finding.fails("it claims a level that nothing in it proves", _payload_of(event), str(event), "level")
        else:
            finding.cannot_tell("its signature was erased", _payload_of(event), str(event), "envelope")
            facts["key"] = "erased"
        facts["level"] = min(facts["level"], 1)
    if facts["decision"] == "approve":
        _check_level(case, event, facts)
        _check_named(case, event, facts)
    new = finding.problems[problems:]
    facts["verdict"] = FAILED if any(not each.is_unverified for each in new) else UNVERIFIED if new else OK
    return facts


def _check_level(case: Case, event: Event, facts: dict[str, Any]) -> None:
    finding, least = case.report["approvals"], case.trust.min_level
    if facts["level"] < least and facts["key"] != "erased":
        finding.fails(f"level {facts['level']}, and you ask for {least}", _payload_of(event), str(event), "level")
    elif least >= 2 and facts["key"] != "your key":
        message = "only the pack says whose key this is: give --approver ID=KEY, from another source"
        finding.cannot_tell(message, "log-entries.bin", str(event), "key_id")


def _check_named(case: Case, event: Event, facts: dict[str, Any]) -> None:
    """Check an approval against the auditor's own word, where he gave it, of who may approve with which key."""
    finding, approver = case.report["approvals"], event.entry.actor
    names = {each.id for each in case.trust.approvers}
    if not names or event.get("actor_source") == "policy":
        return
    if approver not in names:
        message = f"approved by {approver}, whom you have not named: give --approver ID=KEY, from another source"
        finding.cannot_tell(message, _payload_of(event), str(event), "actor")
    elif facts["key"] == "no signature":
        message = f"it says that {approver} approved, and is not signed with the key that you know"
        finding.cannot_tell(message, _payload_of(event), str(event), "envelope")


def _check_envelope(
    case: Case,
    vote: Vote,
    request: Request,
    enrolled: dict[str, Enrolment],
    revoked: dict[str, int],
    file: str,
) -> tuple[int, str]:
    """Check a signed decision: its level, and whose word it is that the key is the approver's."""
    event, finding = vote.event, case.report["approvals"]
    if file not in case.pack.sizes or case.pack.read(file, MAX_TEXT) != _envelope_of(event):
        finding.fails("the signed approval is not the one that the event holds", file, str(event), "envelope")
    try:
        payload, keyid, signature = open_envelope(event.get("envelope"))
        predicate = parse_statement(payload, APPROVAL_TYPE, STATEMENT_FIELDS, "request_id", "proposal_sha256")
        if keyid != predicate["key_id"]:
            raise ValueError("its key id is another than that of the statement")
    except (ValueError, binascii.Error) as error:
        finding.fails(f"no signed approval: {error}", file, str(event))
        return 0, "no signature"
    own = _own_key(case, event.entry.actor, predicate["key_id"])
    enrolment = enrolled.get(predicate["key_id"])
    key = own.key if own is not None else enrolment.key if enrolment is not None else None
    if key is None:
        finding.fails("the key is not known: neither you nor the log name it", file, str(event), "key_id")
        return 0, "unknown key"
    kind = enrolment.kind if enrolment is not None else "ed25519"
    if not _is_signed(kind, key, signature, pae(payload)):
        finding.fails("the signature is not of this key and these bytes", file, str(event), "signatures")
    _check_enrolment(case, vote, predicate, key, enrolment, revoked, file)
    _check_bindings(case, vote, request, predicate, file)
    _check_seen_head(case, event, request, predicate["head"], file)
    _check_roles(case, event, request, enrolment, file)
    level = enrolment.level if enrolment is not None else 0
    if event.get("level") != level:
        finding.fails("it claims another level than its key was enrolled for", file, str(event), "level")
    if own is not None:
        return min(level, own.level), "your key"
    return level, "a key that only the log names"


def _check_roles(case: Case, event: Event, request: Request, enrolment: Enrolment | None, file: str) -> None:
    """Let only those roles count for which the key was enrolled: if there are any, and always from level 2 on."""
    bound = enrolment.roles if enrolment is not None else []
    wanted, claimed = request.terms["roles"], event.get("roles")
    if event.get("decision") != "approve" or not wanted or not (bound or request.terms["level"] >= 2):
        return
    if not isinstance(claimed, list) or not _common([role for role in claimed if role in bound], wanted):
        message = "its key was enrolled for none of the roles that the terms ask for"
        case.report["approvals"].fails(message, file, str(event), "roles")


def _own_key(case: Case, approver: str, key_id: str) -> Approver | None:
    for each in case.trust.approvers:
        if each.id == approver and hashlib.sha256(each.key).hexdigest() == key_id:
            return each
    return None


def _is_signed(kind: str, key: bytes, signature: bytes, data: bytes) -> bool:
    try:
        return is_ssh_signature(key, signature, data, kind) if kind in SSH_KINDS else is_signature(key, signature, data)
    except ValueError:
        return False


def _check_enrolment(
    case: Case,
    vote: Vote,
    predicate: dict[str, Any],
    key: bytes,
    enrolment: Enrolment | None,
    revoked: dict[str, int],
    file: str,
) -> None:
    """Check that the key was the approver's when he decided, and when the effect began."""
    event, finding = vote.event, case.report["approvals"]
    if enrolment is None or enrolment.position > event.entry.position:
        finding.fails("the log had not enrolled this key by then", file, str(event), "key_id")
    elif enrolment.approver != predicate["approver"] or enrolment.key != key:
        finding.fails("the log has enrolled this key for somebody else", file, str(event), "approver")
    owners = sorted({each.id for each in case.trust.approvers if each.key == key})
    if owners and event.entry.actor not in owners:
        message = f"you know this key as that of {', '.join(owners)}, and the log says that it is {event.entry.actor}'s"
        finding.fails(message, file, str(event), "approver")
    is_known = any(approver.id == event.entry.actor for approver in case.trust.approvers)
    if is_known and _own_key(case, event.entry.actor, predicate["key_id"]) is None:
        finding.fails("it is signed with another key than you know of this approver", file, str(event), "key_id")
    end = revoked.get(predicate["key_id"])
    if end is not None and any(end <= use.entry.position for use in (event, *vote.begun)):
        finding.fails(f"the key was revoked at position {end}", file, str(event), "key_id")


def _check_bindings(case: Case, vote: Vote, request: Request, predicate: dict[str, Any], file: str) -> None:
    """Compare every field of the statement with what the entries of this pack say."""
    event, finding, proposal = vote.event, case.report["approvals"], request.event
    own_terms = {name: request.terms[name] for name in TERMS if request.terms[name] != TERMS[name]}
    expected: dict[str, Any] = {
        "decision": event.get("decision"),
        "request_id": request.id,
        "log_id": event.entry.log_id.hex(),
        "run_id": event.entry.stream[len("run:") :],
        "proposal_position": proposal.entry.position,
        "proposal_leaf": proposal.entry.leaf.hex(),
        "proposal_sha256": request.hash,
        "action": request.action,
        "action_sha256": proposal.get("action_sha256"),
        "output": request.output,
        "policy_id": request.action,
        "policy_sha256": hashlib.sha256(canonical(own_terms)).hexdigest(),
        "requester": proposal.entry.actor,
        "approver": event.entry.actor,
        "roles": event.get("roles", []),
        "reason": event.get("reason"),
        "nonce": event.entry.event_id.hex(),
        "max_uses": 1,
    }
    gone = {"action", "action_sha256", "output", "policy_id"} if proposal.body.source != "plain" else set()
    _check_displayed(finding, event, request, predicate["displayed"], file)
    _check_signed_event(finding, event, request, predicate, file)
    for name, value in expected.items():
        if name not in gone and predicate[name] != value:
            finding.fails(
                f"the statement says something else than the log: {predicate[name]!r:.80}", file, str(event), name
            )
    if type(predicate["max_uses"]) is not int or type(predicate["proposal_position"]) is not int:
        finding.fails("a number that is none", file, str(event), "max_uses")
    for other in (event, *vote.begun[:1]):  # the first intent spends it, and no later attempt asks for the time
        if type(predicate["not_after_us"]) is not int or _is_later(other, predicate["not_after_us"]):
            finding.fails("the approval was over by then", file, str(other), "not_after_us")


def _check_signed_event(finding: Finding, event: Event, request: Request, predicate: dict[str, Any], file: str) -> None:
    """Check what the event says of a decision that is signed."""
    if event.get("actor_source") != "signed":
        finding.fails("a signed decision that says it is none", file, str(event), "actor_source")
    is_own = predicate["approver"] == predicate["requester"] and predicate["decision"] == "approve"
    if request.terms["separation_of_duties"] and is_own:
        finding.fails("the approver is who asked, which the terms forbid", file, str(event), "approver")


def _check_displayed(finding: Finding, event: Event, request: Request, displayed: Any, file: str) -> None:
    """Check that what the approver saw is what was asked, where it was shown in the way that can be made again."""
    if not isinstance(displayed, dict) or set(displayed) != {"media_type", "sha256"}:
        finding.fails("it does not say what was displayed", file, str(event), "displayed")
    elif displayed["media_type"] != SHOWN_AS or request.event.body.source != "plain":
        return  # another program showed it: its digest is evidence, and no more
    elif displayed["sha256"] != hashlib.sha256(shown_request(request, event.entry.log_id).encode("utf-8")).hexdigest():
        finding.fails("the approver was shown something else than was asked", file, str(event), "displayed")


SHOWN_AS = "text/vnd.eventlog.request; version=1"
_HIDDEN = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


def shown_request(request: Request, log_id: bytes) -> str:
    """Return the request as text, as an approver is shown it: made from the event of the proposal alone.

    `log_id` is the log in which it is decided; a restore since the proposal has begun another one.
    """
    event, proposal = request.event, request.event.get("proposal")
    entry, terms = event.entry, request.terms
    people = "1 approval" if terms["required"] == 1 else f"{terms['required']} approvals by different people"
    roles = f", each with one of the roles {_seen_json(terms['roles'])}" if terms["roles"] else ""
    duties = ", not by who asked" if terms["separation_of_duties"] else ""
    level = f", of level {terms['level']} or higher" if terms["level"] else ""
    lines = [
        ("log", log_id.hex()),
        ("run", _seen_json(entry.stream[len("run:") :])),
        ("request", _seen_json(event.get("request_id"))),
        ("step", None if event.get("step") is None else _seen_json(event.get("step"))),
        ("action", _seen_json(proposal["action"])),
        ("definition", event.get("action_sha256") or "not recorded"),
        ("output", _seen_json(proposal["output"])),
        ("folder", None if event.get("folder") is None else _seen_json(event.get("folder"))),
        ("asked by", _seen_json(entry.actor)),
        ("asked at", _exact_time(entry.recorded_at_us)),
        ("in place of", None if event.get("supersedes") is None else _seen_json(event.get("supersedes"))),
        ("terms", people + roles + duties + level),
        ("decide until", None if event.get("expires_at_us") is None else _exact_time(event.get("expires_at_us"))),
        ("position", str(entry.position)),
        ("proposal", event.get("proposal_hash")),
    ]
    args = ["  " + line for line in _seen_json(proposal["args"], indent=2).split("\n")]
    return "\n".join([*(f"{name + ':':<14}{text}" for name, text in lines if text is not None), "args:", *args, ""])


def _seen_json(value: Any, indent: int | None = None) -> str:
    return re.sub(r"[^\x00-\x7e]", _seen, json.dumps(value, ensure_ascii=False, sort_keys=True, indent=indent))


def _seen(match: re.Match[str]) -> str:
    """Return a character, or its escape where people cannot see it, or Unicode 3.2 did not have it."""
    mark = match.group()
    is_blank = mark in _BLANK or "\ufe00" <= mark <= "\ufe0f" or "\U000e0100" <= mark <= "\U000e01ef"
    is_hidden = mark != "\u3000" and (is_blank or unicodedata.category(mark) in _HIDDEN)
    return json.dumps(mark)[1:-1] if is_hidden or unicodedata.ucd_3_2_0.category(mark) == "Cn" else mark


def _exact_time(at_us: int) -> str:
    try:
        seconds, microseconds = divmod(at_us, 1_000_000)
        at = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).replace(microsecond=microseconds)
    except (OverflowError, OSError, ValueError, TypeError):
        return f"{at_us} µs"
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _check_seen_head(case: Case, event: Event, request: Request, seen: Any, file: str) -> None:
    """Check that the head which the approver saw is where the tree of this pack's head began, and held the proposal."""
    finding, head = case.report["approvals"], case.head
    if not isinstance(seen, dict) or set(seen) != {"size", "root"} or type(seen["size"]) is not int:
        finding.fails("the head in the approval is none", file, str(event), "head")
        return
    if not request.event.entry.position <= seen["size"] < event.entry.position:
        finding.fails("the head in the approval is not from between asking and deciding", file, str(event), "head")
    name = f"consistency/{seen['size']}.proof"
    if head is None:
        return
    growth = _growth(case, name) if name in case.pack.sizes else None
    if growth is None:
        finding.cannot_tell(
            "no proof that the log has grown from the head that the approver saw", name, str(event), "head"
        )
    elif not is_consistent(seen["size"], _unhex(seen["root"]), head.size, head.root, growth[1]):
        finding.fails("the approver has seen another log than this one: it was rewritten", name, str(event), "head")


def _unhex(text: Any) -> bytes:
    return bytes.fromhex(text) if type(text) is str and re.fullmatch(r"[0-9a-f]{64}", text) else b""


def pae(payload: bytes) -> bytes:
    """Return the bytes that a DSSE signature covers."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def open_envelope(envelope: Any) -> tuple[bytes, str, bytes]:
    """Return payload, key id and signature of a DSSE envelope, which has exactly one. Raises ValueError."""
    if not isinstance(envelope, dict) or set(envelope) != {"payload", "payloadType", "signatures"}:
        raise ValueError("no DSSE envelope")
    signatures = envelope["signatures"]
    if envelope["payloadType"] != PAYLOAD_TYPE or not isinstance(signatures, list) or len(signatures) != 1:
        raise ValueError("an envelope of something else, or with more or fewer than one signature")
    if not isinstance(signatures[0], dict) or set(signatures[0]) != {"keyid", "sig"}:
        raise ValueError("a signature that is none")
    return decode_base64(envelope["payload"]), signatures[0]["keyid"], decode_base64(signatures[0]["sig"])


def parse_statement(payload: bytes, kind: str, names: Any, subject_name: str, subject_hash: str) -> dict[str, Any]:
    """Return the predicate of an in-toto statement that has exactly these fields, in its one spelling. ValueError."""
    statement = parse_json(payload, "the statement")
    if not isinstance(statement, dict) or canonical(statement) != payload:
        raise ValueError("a statement that is not in its canonical form (RFC 8785)")
    predicate = statement.get("predicate")
    if statement.get("predicateType") != kind or not isinstance(predicate, dict) or set(predicate) != names:
        raise ValueError("a statement with other fields than it has to have, or about something else")
    subject = [{"name": predicate[subject_name], "digest": {"sha256": predicate[subject_hash]}}]
    whole = {"_type": STATEMENT_TYPE, "subject": subject, "predicateType": kind, "predicate": predicate}
    if statement != whole or type(predicate["key_id"]) is not str:
        raise ValueError("a statement about another subject")
    return predicate


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 bytes of texts, whole numbers, booleans, null, lists, and objects with ASCII keys."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("utf-8")


def _enrolments(case: Case) -> tuple[dict[str, Enrolment], dict[str, int]]:
    """Return who the log says holds which key, and from which position on a key counts no more."""
    enrolled: dict[str, Enrolment] = {}
    revoked = dict(case.trust.revoked)
    for event in case.log:
        if event.entry.type == "approver_enrolled":
            if len(enrolled) >= MAX_APPROVERS:
                raise PackError(f"more than {MAX_APPROVERS} keys of approvers", "log-entries.bin")
            try:
                _enrol(event, enrolled)
            except ValueError as error:
                message = f"an enrolment that does not hold: {error}"
                case.report["approvals"].fails(message, _payload_of(event), str(event), "proof")
        elif event.entry.type == "approver_revoked":
            key_id = str(event.get("key_id"))
            revoked[key_id] = min(event.entry.position, revoked.get(key_id, event.entry.position))
    return enrolled, revoked


def _enrol(event: Event, enrolled: dict[str, Enrolment]) -> None:
    key = checked_key(public_key_of(event.get("public_key")))
    key_id, approver, level = hashlib.sha256(key).hexdigest(), event.get("approver"), event.get("level", 2)
    first_word = event.get("public_key").partition(" ")[0]
    kind = first_word if first_word in SSH_KINDS else "ed25519"
    payload, keyid, signature = open_envelope(event.get("proof"))
    predicate = parse_statement(payload, ENROLMENT_TYPE, ENROLMENT_FIELDS, "approver", "key_id")
    if (
        event.get("key_id") != key_id
        or keyid != key_id
        or type(approver) is not str
        or level not in (2, 3)[kind == SSH_TOKEN :]
    ):
        raise ValueError("its key id is not that of its key, or it has no approver or level")
    roles = event.get("roles", [])
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise ValueError("its roles are no texts")
    if event.get("kind") != kind or predicate["key_id"] != key_id or predicate["approver"] != approver:
        raise ValueError("the proof is for another key or approver")
    if predicate["log_id"] != event.entry.log_id.hex() or predicate["challenge"] != event.entry.event_id.hex():
        raise ValueError("the proof is for another log, or was used before")
    if type(predicate["not_after_us"]) is not int or _is_later(event, predicate["not_after_us"]):
        raise ValueError("the proof was too old")
    if not _is_signed(kind, key, signature, pae(payload)):
        raise ValueError("the holder of the key has not signed it")
    if key_id in enrolled:
        raise ValueError("the key was enrolled before")
    enrolled[key_id] = Enrolment(approver, key, kind, level, event.entry.position, roles)


# erasures, artifacts


def _check_erasures(case: Case, erasures: dict[int, Event]) -> None:
    """Check that whatever is not here was erased, and by an event that says so of just that entry."""
    finding = case.report["erasures"]
    destroyed = {event.get("key_id") for event in case.log if event.entry.type == "subject_erased"}
    erased: list[int] = []
    sealed = 0
    for event in case.run:
        path = f"payload/run/{event.entry.version}"
        if any(f"{path}.{end}" in case.pack.sizes for end in ("json", "salt")):
            continue
        if f"{path}.sealed" in case.pack.sizes:
            sealed += 1
            continue
        erased.append(event.entry.position)
        erasure = erasures.get(event.entry.position)
        if erasure is None:
            finding.fails("the body is lost: it is not here, and nothing says that it was erased", path, str(event))
        elif not _erases(erasure, event.entry):
            finding.fails("the erasure is of another body than that of the entry", path, str(erasure), "content_commit")
    finding.facts.update(erased=erased, encrypted=sealed, destroyed_keys=sorted(str(key) for key in destroyed))
    finding.is_none = not erased and not sealed
    finding.says = f"{len(erased)} erased, {sealed} encrypted"


def _erases(erasure: Event, entry: Entry) -> bool:
    stated = tuple(erasure.get(name) for name in ("body_kind", "body_len", "content_commit", "stored_hash"))
    facts = (entry.body_kind, entry.body_len, entry.content_commit.hex(), entry.stored_hash.hex())
    return stated == facts and erasure.entry.position > entry.position


def _check_artifacts(case: Case) -> None:
    finding = case.report["artifacts"]
    named: dict[str, Event] = {}
    for event in case.run:
        digest = event.get("artifact")
        if digest is not None and event.entry.type in TYPES:
            named.setdefault(str(digest), event)
    for digest, event in named.items():
        name = f"artifacts/{digest}"
        if name not in case.pack.sizes:
            finding.fails("the artifact that the event names is not here", name, str(event), "artifact")
            continue
        if _digest_of(case.pack, name) != digest:
            finding.fails("the artifact is another one than its name says", name, str(event), "artifact")
    for name in sorted(case.pack.sizes):
        if name.startswith("artifacts/") and name[len("artifacts/") :] not in named:
            finding.fails("an artifact that no event names", name)
    finding.is_none = not named
    finding.says = f"{len(named)} named by events of the run"


# ── The command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        description="Check an evidence pack of one run, offline, without trusting whoever made it.",
        epilog="Exit status: 0 all of it holds, 3 something is wrong, 4 something could not be checked, 2 wrong usage.",
    )
    parser.add_argument("pack", help="the zip file, or a folder with what was in it")
    parser.add_argument(
        "--log-key", action="append", default=[], metavar="VKEY", help="a key that signs the log's heads"
    )
    approver = "who holds which key: text, or a file"
    parser.add_argument("--approver", action="append", default=[], metavar="ID=KEY", help=approver)
    parser.add_argument("--witness", action="append", default=[], metavar="VKEY", help="a witness that you trust")
    parser.add_argument("--quorum", type=int, metavar="N", help="how many witnesses must have signed (default: all)")
    parser.add_argument("--min-level", type=int, metavar="N", help="the least level of every approval, 0 to 3")
    parser.add_argument(
        "--head", action="append", default=[], metavar="FILE", help="a head, a file of them, or a proof"
    )
    parser.add_argument("--run", metavar="RUN", help="the run that the pack has to be of")
    parser.add_argument("--policy", metavar="FILE", help="all of this as JSON; see the head of this file")
    parser.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    asked = parser.parse_args(arguments)
    try:
        import cryptography  # noqa: F401
    except ImportError:
        sys.stderr.write("cannot verify: this needs the package `cryptography`\n")
        return 4
    try:
        report = verify_pack(asked.pack, _trust_of_options(asked))
    except OSError as error:
        parser.exit(2, f"{parser.prog}: cannot read {_safe(str(error.filename))}: {error.strerror}\n")
    except ValueError as error:
        parser.exit(2, f"{parser.prog}: {_safe(str(error))}\n")
    sys.stdout.write(json.dumps(report.to_json()) + "\n" if asked.json else text_of(report))
    return report.exit_status


def _trust_of_options(asked: argparse.Namespace) -> Trust:
    policy = None
    if asked.policy is not None:
        policy = parse_json(_read(asked.policy), "the policy")
    return trust_of(
        policy,
        log_keys=asked.log_key,
        approvers=[with_key_of_file(each) for each in asked.approver],
        witnesses=asked.witness,
        quorum=asked.quorum,
        min_level=asked.min_level,
        heads=[(path, read_kept(path)) for path in asked.head],
        run=asked.run,
    )


def with_key_of_file(given: str) -> str:
    """Return ID=KEY with the text of the file that KEY names, if it names one: a key as `id_ed25519.pub` has it."""
    name, _, key = given.partition("=")
    if os.path.isfile(key):
        key = _read(key).decode("ascii", "replace").strip()
    try:
        checked_key(public_key_of(key))
    except ValueError as error:
        raise ValueError(f"--approver ID=KEY: {key!r:.120} is neither a file nor a key ({error})") from error
    return f"{name}={key}"


def read_kept(path: str) -> bytes:
    """Return the bytes of a head, a proof, or a file of heads. Raises OSError, and ValueError if it is too large."""
    with open(path, "rb") as file:
        begin = file.read(1)
        limit = MAX_TABLE if begin == b"{" else MAX_TEXT
        data = begin + file.read(limit)
    if len(data) > limit:
        raise ValueError(f"{path} is too large: give the last of its lines")
    return data


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(MAX_TEXT + 1)
    if len(data) > MAX_TEXT:
        raise ValueError(f"{path} is too large")
    return data


def text_of(report: Report) -> str:
    """Return the verdicts for people, a line each, and what is wrong. Nothing in it can steer a terminal."""
    lines = []
    for name, finding in report.findings.items():
        lines.append(f"{name:<10} {finding.verdict:<10} {finding.says}")
        for problem in finding.problems[:MAX_SHOWN]:
            parts = [part for part in (problem.file, problem.event, problem.field, problem.message) if part]
            if parts != [finding.says]:
                lines.append(f"    {': '.join(parts)}")
        if len(finding.problems) > MAX_SHOWN:
            lines.append(f"    and {len(finding.problems) - MAX_SHOWN} more")
    said = {
        0: "VERIFIED",
        3: "FAILED: something is wrong with this pack",
        4: "NOT VERIFIED: something could not be checked; nothing wrong was found in the rest",
    }
    lines.append(said[report.exit_status])
    return "".join(_safe(line) + "\n" for line in lines)


def _safe(text: str) -> str:
    return "".join(
        mark if mark.isprintable() and mark.isascii() else mark.encode("unicode_escape").decode() for mark in text
    )


if __name__ == "__main__":
    sys.exit(main())
