"""Copies of the project in which something is broken on purpose."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tools.campaigns.frame.campaign import Break

__all__ = ["ROOT", "BreakDoesNotFit", "broken_copy"]

ROOT: Final = Path(__file__).resolve().parents[3]
_COPIED: Final = ("eventlog", "projections", "tools", "tests/golden")


class BreakDoesNotFit(Exception):
    """The text that a control breaks is not there exactly once: the engine has changed, and the control has to."""


def broken_copy(folder: Path, breaks: Iterable[Break]) -> Path:
    """Copy the project below `folder`, break the copy, and return its root. Raises BreakDoesNotFit."""
    root = folder / "project"
    for name in _COPIED:
        shutil.copytree(ROOT / name, root / name)  # compiled files are taken along, with the times that make them valid
    for each in breaks:
        path = root / each.file
        path.write_text(broken(path.read_text(encoding="utf-8"), each), encoding="utf-8")
    return root


def broken(source: str, each: Break) -> str:
    """Return source text with the break made. Raises BreakDoesNotFit."""
    found = source.count(each.old)
    if found != 1:
        raise BreakDoesNotFit(f"{each.file}: what is to be broken is there {found} times: {each.old!r}")
    if each.old == each.new:
        raise BreakDoesNotFit(f"{each.file}: nothing is broken by {each.new!r}")
    return source.replace(each.old, each.new)
