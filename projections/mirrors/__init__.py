"""Mirrors: a second form of some streams, outside the log, driven by every append and never ahead of the log.

    async with mirrored(eventlog.open("agent.db"), TranscriptMirror("transcripts")) as log:
        runner = Runner(log, workflows=[…])        # each run is also a JSON-lines file in the folder

`mirrored` gives a log with a mirror (`projections.mirrors.mirrored` says who is told what when something fails);
`TranscriptMirror` is the mirror that ships; `Mirror` is what another has to do.
"""

from projections.mirrors.evidence import Begun
from projections.mirrors.mirror import Mirror
from projections.mirrors.mirrored import MirroredDatabaseLog, MirroredLog, MirroredTransactionalLog, mirrored
from projections.mirrors.transcript_repair import Repaired
from projections.mirrors.transcripts import TranscriptMirror

__all__ = [
    "Begun",
    "Mirror",
    "MirroredDatabaseLog",
    "MirroredLog",
    "MirroredTransactionalLog",
    "Repaired",
    "TranscriptMirror",
    "mirrored",
]
