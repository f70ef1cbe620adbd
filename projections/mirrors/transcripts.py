"""Transcripts: each stream of a log as a JSON-lines file in a folder, for people and programs that only read files.

What a line is, is specified in `projections.mirrors.transcript_lines`; what a file is called, in `transcript_names`;
what else lies in the folder, in `folder`; when a line is missing, wrong or too much, in `transcript_repair`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from eventlog.errors import EventLogError, InvalidInput, MirrorBehind, StoreUnavailable
from eventlog.log import RunLog
from projections.mirrors.evidence import Begun, Evidence
from projections.mirrors.folder import coded_os_errors, make_folder, opened
from projections.mirrors.threads import on_thread
from projections.mirrors.transcript_files import TranscriptFiles
from projections.mirrors.transcript_growth import bring_up
from projections.mirrors.transcript_names import file_name
from projections.mirrors.transcript_repair import Repaired, rebuild, repair

__all__ = ["TranscriptMirror"]


class TranscriptMirror:
    """The streams of a log whose names begin with `streams`, each as a JSON-lines file in `folder`, made if missing.

    Used through `mirrored`; by hand to `repair` or `rebuild`. An append is refused while less than `room_bytes` are
    free on the disk. That is no promise: another program may take the room in between, and then the mirror falls
    behind. Several processes may keep the same folder, each with a log object of its own.
    """

    def __init__(self, folder: str | os.PathLike[str], *, streams: str = "run:", room_bytes: int = 1 << 20) -> None:
        if type(streams) is not str:
            raise InvalidInput("invalid_argument", f"`streams` is how names of streams begin, not {streams!r:.80}")
        # Absolute from the start: the same folder wherever the process goes.
        self._folder: Final = os.path.abspath(os.fspath(folder))
        self._prefix: Final = streams
        self._room_bytes: Final = room_bytes
        self._files: Final = TranscriptFiles(self._folder)

    def wants(self, stream: str) -> bool:
        """Say whether the stream has a transcript."""
        return stream.startswith(self._prefix)

    def path(self, stream: str) -> str:
        """Return where the transcript of a stream is."""
        return self._files.path(file_name(stream))

    # ── compared with the log ────────────────────────────────────────────────────────────────────────────────────────

    async def start(self, log: RunLog) -> Sequence[MirrorBehind]:
        """Compare every transcript with the log, line by line, and bring up what is behind. See `repair`."""
        return [
            MirrorBehind(one.stream, str(one.problem), version=None, mirrored=None)
            for one in await self.repair(log)
            if one.problem is not None
        ]

    async def repair(self, log: RunLog, *, force: bool = False) -> Sequence[Repaired]:
        """Compare every transcript with the log, bring up what is behind, and return what was done.

        One that contradicts the log is left as it is, and raises MirrorDamaged when all others are done. With `force`
        it is built again from the log, and what stood there is kept beside it. Raises
        StoreUnavailable(`mirror_unavailable`).
        """
        return await repair(self._files, log, self._prefix, force=force)

    async def rebuild(self, log: RunLog, stream: str) -> Repaired:
        """Build the transcript of one stream again from the log; what stood there is kept beside it."""
        return await rebuild(self._files, log, stream)

    async def settle(self, log: RunLog, stream: str) -> None:
        """Write what the transcript lacks, from the log. Raises MirrorDamaged, StoreUnavailable, LogCorrupt, …"""
        await bring_up(self._files, log, stream)

    async def reached(self, stream: str) -> int | None:
        """Return the version of the last line of a transcript, 0 without one, None if it cannot be read."""
        try:
            return await on_thread(self._reached, stream)
        except (OSError, EventLogError):
            return None

    def _reached(self, stream: str) -> int:
        with opened(self._folder) as directory:
            return self._files.end(directory, file_name(stream), stream).version

    # ── around an append ─────────────────────────────────────────────────────────────────────────────────────────────

    async def prepare(self, appends: Sequence[Begun]) -> Evidence:
        """Leave durable evidence of an append, and see that folder, files, permissions and room are there for it.

        Raises StoreUnavailable(`mirror_unavailable`), MirrorDamaged; then nothing is left.
        """
        return await on_thread(self._prepare, appends)

    def _prepare(self, appends: Sequence[Begun]) -> Evidence:
        with coded_os_errors(f"prepare the transcript {self.path(appends[0].stream)}"):
            make_folder(self._folder)
            with opened(self._folder) as directory:
                self._require_room(directory)
                begun = [replace(each, size_bytes=self._size(directory, each.stream)) for each in appends]
                return Evidence.create(self._folder, directory, file_name(appends[0].stream), begun)

    def _size(self, directory: int, stream: str) -> int:
        return self._files.end(directory, file_name(stream), stream).size

    def _require_room(self, directory: int) -> None:
        disk = os.fstatvfs(directory)
        free = (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail) * disk.f_frsize
        if disk.f_blocks and free < self._room_bytes:  # without blocks it is a file system that does not count
            message = f"{free} bytes are free for the transcripts in {self._folder}, and {self._room_bytes} wanted"
            raise StoreUnavailable("mirror_unavailable", message)

    async def release(self, evidence: Evidence) -> None:
        """Remove the evidence. Raises StoreUnavailable; then it lies for the next start."""
        with coded_os_errors("remove the evidence of an append"):
            await on_thread(evidence.remove)

    def leave(self, evidence: Evidence) -> None:
        """Let the evidence lie for the next start."""
        evidence.leave()
