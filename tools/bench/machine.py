"""What the figures depend on: processor, kernel, file system, Python, SQLite. Nothing that names a machine."""

from __future__ import annotations

import os
import platform
import sqlite3
from pathlib import Path

import msgspec

__all__ = ["Machine", "describe", "describe_load"]


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the machine. `sqlite` is the library of the process that measures."""

    cpu: str
    cores: int
    kernel: str
    file_system: str
    python: str
    sqlite: str


def describe(folder: Path) -> Machine:
    """Return the facts; the file system is that of the folder in which the stores are."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        file_system=_file_system(folder),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
    )


def describe_load() -> float:
    """Return how many programs wanted a processor during the last minute, ours included."""
    return round(os.getloadavg()[0], 2)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system with the longest mount point above the folder."""
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    place = str(folder.resolve())
    above = [(len(point), kind) for _, point, kind, *_ in map(str.split, mounts) if _is_above(point, place)]
    return max(above)[1] if above else "unknown"


def _is_above(point: str, place: str) -> bool:
    return point == "/" or place == point or place.startswith(f"{point}/")
