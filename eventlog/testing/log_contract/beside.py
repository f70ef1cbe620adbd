"""What is kept beside the events: artifacts and snapshots."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import msgspec
import pytest

from eventlog.errors import LogCorrupt
from eventlog.events import StepCompleted
from eventlog.log import Append, ArtifactName, Expect, NewEvent, RunLog, Snapshot
from eventlog.testing.log_contract.subject import ANY, Subject, note, raises

__all__ = ["ArtifactsContract", "SnapshotsContract"]


class ArtifactsContract(Subject):
    """Large values, kept under the SHA-256 of their bytes."""

    @pytest.mark.parametrize("size", [0, 1, 100_000])
    async def test_what_was_put_is_got(self, log: RunLog, size: int) -> None:
        data = b"\0\xff\n"[:size] * max(size // 3, 1)
        digest = await log.artifacts.put(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert await log.artifacts.get(digest) == data

    async def test_putting_the_same_again_changes_nothing(self, log: RunLog) -> None:
        first = await log.artifacts.put(b"data")
        many = await asyncio.gather(*(log.artifacts.put(b"data") for _ in range(20)))
        assert set(many) == {first}
        assert await log.artifacts.get(first) == b"data"

    async def test_what_was_never_put_is_missing(self, log: RunLog) -> None:
        with raises("log_corrupt") as caught:
            await log.artifacts.get("0" * 64)
        assert isinstance(caught.value, LogCorrupt)
        assert caught.value.reason == "artifact_missing"

    @pytest.mark.parametrize(
        "digest", ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "../" + "0" * 61, "g" * 64, None, b"0" * 64]
    )
    async def test_nothing_but_a_digest_names_an_artifact(self, log: RunLog, digest: Any) -> None:
        with raises("invalid_argument"):
            await log.artifacts.get(digest)

    @pytest.mark.parametrize("data", ["text", bytearray(b"data"), None], ids=["text", "bytearray", "None"])
    async def test_an_artifact_is_bytes(self, log: RunLog, data: Any) -> None:
        with raises("invalid_argument"):
            await log.artifacts.put(data)

    async def test_a_check_says_which_artifacts_the_events_of_runs_name(self, log: RunLog) -> None:
        digest = await log.artifacts.put(b"data")
        named = StepCompleted(name="fetch", key="fetch", artifact=digest)
        inline = StepCompleted(name="fetch", key="fetch", output=msgspec.Raw(b'{"artifact":"%s"}' % digest.encode()))
        await log.append("a", [NewEvent("somebodys_own", {"artifact": digest})], expect=ANY)
        await log.append_reserved([Append("run:run-1", [inline, named], ANY)])
        page = await log.check_page(after=0)
        assert list(page.artifacts) == [ArtifactName(digest=digest, position=3, stream="run:run-1")]


class SnapshotsContract(Subject):
    """States that can be folded again, kept for the time that this would take."""

    async def test_a_stream_without_a_snapshot_has_none(self, log: RunLog) -> None:
        assert await log.load_snapshot("a") is None

    async def test_the_last_snapshot_of_each_stream_is_kept(self, log: RunLog) -> None:
        for stream, version, state in [("a", 1, b"one"), ("b", 7, b"\0\xff"), ("a", 2, b"two"), ("a", 2, b"again")]:
            await log.save_snapshot(stream, Snapshot(version, state))
        assert await log.load_snapshot("a") == Snapshot(2, b"again")
        assert await log.load_snapshot("b") == Snapshot(7, b"\0\xff")
        assert await log.load_snapshot("c") is None

    async def test_a_late_snapshot_does_not_replace_a_newer_one(self, log: RunLog) -> None:
        await log.save_snapshot("a", Snapshot(5, b"five"))
        await log.save_snapshot("a", Snapshot(4, b"four"))
        assert await log.load_snapshot("a") == Snapshot(5, b"five")

    async def test_snapshots_are_no_events(self, log: RunLog) -> None:
        await log.append("a", [note()], expect=ANY)
        await log.save_snapshot("a", Snapshot(1, b"state"))
        await log.append("a", [note()], expect=Expect.at(1))
        assert (await log.head()).position == 2

    @pytest.mark.parametrize("version", [-1, 1.5, True, None, 2**63])
    async def test_a_snapshot_is_of_a_version(self, log: RunLog, version: Any) -> None:
        with raises("invalid_argument"):
            await log.save_snapshot("a", Snapshot(version, b"state"))

    async def test_a_snapshot_is_of_a_stream(self, log: RunLog) -> None:
        with raises("invalid_id"):
            await log.save_snapshot("", Snapshot(1, b"state"))
        with raises("invalid_id"):
            await log.load_snapshot("")
