"""Under which key the code of a run asks for something: a name, counted in the branch of the code that uses it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any, Final

from eventlog.errors import InvalidInput, Misuse
from eventlog.plain import check_id

__all__ = ["BRANCH", "Branch", "Keys"]


class Branch:
    """A line of the code that runs beside others, and so counts the names that it uses for itself.

    If all counted together, who is `sleep` and who `sleep#2` would hang on which of two branches came first.
    """

    __slots__ = ("_uses", "prefix", "task")

    def __init__(self, prefix: str, task: asyncio.Task[Any] | None = None) -> None:
        self.prefix: Final = prefix
        self.task = task
        """The task that is this branch; None until it asks for something."""
        self._uses: Final[dict[str, int]] = {}

    def next(self, base: str) -> str:
        """Return the name as this branch uses it next: itself, then `#2`, `#3`, …"""
        uses = self._uses[base] = self._uses.get(base, 0) + 1
        return base if uses == 1 else f"{base}#{uses}"

    def begun(self, task: asyncio.Task[Any] | None) -> Branch:
        """Return the branch of a task of the code's own: they are numbered as they first ask for something."""
        name = self.next("task")
        return Branch(f"{self.prefix}{name if '#' in name else name + '#1'}/", task)


BRANCH: Final[ContextVar[Branch | None]] = ContextVar("eventlog_branch", default=None)
"""The branch that this task is, or that has begun it."""


class Keys:
    """The keys of all that the code of one drive has come to. Names are checked: InvalidInput(`invalid_id`)."""

    def __init__(self) -> None:
        self._root: Final = Branch("")
        self._used: Final[dict[str, None]] = {}

    def begin(self) -> None:
        """Take the current task for the code itself."""
        self._root.task = asyncio.current_task()
        BRANCH.set(self._root)

    def next(self, name: str) -> str:
        """Return the key of the next operation of this name: the name itself, then `name#2`, `name#3`, …"""
        return self._noted(_checked(name), _current())

    def own(self, name: str, key: str) -> str:
        """Return the key of an operation that the program names itself: the same in whichever branch it stands."""
        _current()
        return self._noted(f"{_checked(name)}:{_checked_key(key)}", self._root)

    def next_signal(self, name: str) -> str:
        """Return the key of the next wait for this signal."""
        return self._noted(f"{_checked(name)}:signal", _current())

    def used(self) -> set[str]:
        """Return every key that was handed out."""
        return set(self._used)

    def _noted(self, base: str, branch: Branch) -> str:
        found = branch.prefix + branch.next(base)
        self._used[found] = None
        return found


def _current() -> Branch:
    task, branch = asyncio.current_task(), BRANCH.get()
    if branch is None:
        raise Misuse("nested_step", "a run was asked for something outside of its workflow's own tasks")
    if branch.task is None:
        branch.task = task
    elif branch.task is not task:
        branch = branch.begun(task)
        BRANCH.set(branch)
    return branch


def _checked(name: str) -> str:
    check_id(name, "step", max_bytes=128)
    if "#" in name or ":" in name:
        raise InvalidInput("invalid_id", f"the name of a step holds neither '#' nor ':', unlike {name!r:.80}")
    return name


def _checked_key(key: str) -> str:
    # Doubled, so that no key of the program's is spelled like the second use of another.
    return check_id(key, "step key", max_bytes=256).replace("#", "##")
