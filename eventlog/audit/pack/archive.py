"""A pack as one zip file whose bytes follow from its files alone: fixed dates, rights and order, nothing compressed.

Nothing is compressed because what a compressor makes of the same bytes differs between its versions.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from tempfile import SpooledTemporaryFile
from typing import Final
from zipfile import ZIP_STORED, ZipFile, ZipInfo

__all__ = ["write_archive"]

_DATE: Final = (1980, 1, 1, 0, 0, 0)
_UNIX: Final = 3
_READABLE: Final = 0o100644 << 16
_IN_MEMORY_BYTES: Final = 16 * 1024 * 1024
_PIECE_BYTES: Final = 1024 * 1024


async def write_archive(files: AsyncIterable[tuple[str, bytes]], write: Callable[[bytes], object]) -> None:
    """Write the files, in the order in which they come, as a zip file, piece by piece. Raises what `write` raises."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES) as spool:  # a zip file is not written from front to end
        with ZipFile(spool, "w", ZIP_STORED) as archive:
            async for name, data in files:
                archive.writestr(_member(name), data)
        spool.seek(0)
        while piece := spool.read(_PIECE_BYTES):
            write(piece)


def _member(name: str) -> ZipInfo:
    member = ZipInfo(name, _DATE)
    member.create_system = _UNIX
    member.external_attr = _READABLE
    return member
