"""The target of paths: whatever an approved output is called, nothing is written outside of the root."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path
from typing import Final

from eventlog.errors import ActionFailed
from eventlog.runtime.actions.write_file import WriteFile
from eventlog.runtime.effects import Call, Executed, Recovered
from tools.campaigns.fuzz import drawing
from tools.campaigns.fuzz.target import Problem, Target

__all__ = ["Paths"]

_PARTS: Final = (
    "a", "b", "..", ".", "", "out", "up", "loop", "deep", "secret.txt", "\0", "~", "é", "e\u0301", "n" * 255, "n" * 256,
    "a\nb", "CON", "dangling", "-rf", "fifo", "..\\..", "%2e%2e", "\u2024\u2024", "a ", "log.db", "…",
)  # fmt: skip
_FRESH: Final = 400
"""After so many files the root is made anew."""


class Paths:
    """A root with traps in it, beside what must never change: links that lead out, up, round, and to nothing."""

    def __init__(self, folder: Path) -> None:
        self._root: Final = folder / "root"
        self._outside: Final = folder / "outside"
        self._loop: Final = asyncio.new_event_loop()
        self._written = 0
        self._outside.mkdir(parents=True)
        (self._outside / "secret.txt").write_text("secret")
        self._lay_traps()
        self._before: Final = self._seen()
        self._number = 0

    def target(self) -> Target:
        """Return the target; it is run in one process, and by no guided fuzzer."""
        return Target("path", self._draw, self._check, 15, known=_KNOWN, is_guided=False)

    def close(self) -> None:
        """End the event loop."""
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _lay_traps(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        (self._root / "deep" / "a").mkdir(parents=True)
        for name, to in (("out", "../outside"), ("up", ".."), ("loop", "loop"), ("dangling", "../outside/new.txt")):
            os.symlink(to, self._root / name)
            os.symlink(os.path.join("..", to), self._root / "deep" / name)
        os.mkfifo(self._root / "fifo")

    def _seen(self) -> list[tuple[str, int, int, int]]:
        """Return what is outside of the root: names, sizes, times of the last change, and numbers of links."""
        beside = [each for each in os.scandir(self._outside.parent) if each.name != self._root.name]
        status = [(each.path, each.stat(follow_symlinks=False)) for each in (*beside, *os.scandir(self._outside))]
        return sorted((path, each.st_size, each.st_mtime_ns, each.st_nlink) for path, each in status)

    def _draw(self, chance: random.Random) -> str:
        if chance.random() < 0.1:
            return drawing.text(chance)
        output = "/".join(chance.choice(_PARTS) for _ in range(chance.randrange(1, 5)))
        if chance.random() < 0.1:
            output = str(self._root.parent / output)
        return drawing.mutated_text(chance, output) if chance.random() < 0.2 else output

    def _check(self, output: str) -> Problem:
        """What is outside stays as it is, and what was reported as written is in the root, and no link."""
        self._number += 1
        call = Call(
            run_id="r",
            action="write_file",
            args={"content": "x"},
            output=output,
            op_key=f"{self._number:064x}",
            attempt=1,
        )
        report, refused = None, None
        try:
            report = self._loop.run_until_complete(WriteFile(root=self._root).execute(call))
        except (ActionFailed, OSError) as error:
            refused = error
        is_same = self._seen() == self._before
        self._written += 1
        if self._written % _FRESH == 0:
            self._lay_traps()
        if not is_same:
            return "what is outside of the root has changed"
        if isinstance(report, Executed | Recovered):
            real = Path(os.path.realpath(self._root / output)) if self._written % _FRESH else self._root
            if not real.is_relative_to(os.path.realpath(self._root)):
                return f"it was written to {real}"
        if refused is not None and not _may_have_happened(refused):
            raise refused
        return None


def _may_have_happened(error: Exception) -> bool:
    """Say whether it is the system's own error, as for a name that is too long: an action raises it where it may."""
    return isinstance(error, OSError) and error.errno is not None


_KNOWN: Final = (
    "../outside/secret.txt", "out/secret.txt", "up/outside/secret.txt", "deep/out/x", "dangling", "loop/x", "fifo",
    "/etc/passwd", "a/../../outside/x", "./a", "a//b", "a\0/../../x", "", ".", "..", "deep", "\ud800", "out", "a/./b",
)  # fmt: skip
