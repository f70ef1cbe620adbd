"""Whether a process sleeps or works, as the kernel says: a busy machine is not to be taken for a hanging process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["Idleness"]


class Idleness:
    """For how long all threads of a process have slept, without a moment of work or of waiting for a processor.

    Time is counted in looks, not by a clock: whoever looks is as late as the process is when the machine is busy. Where
    the kernel does not say (it is another one than Linux), the process never counts as idle.
    """

    def __init__(self, pid: int) -> None:
        self._tasks: Final = Path(f"/proc/{pid}/task")
        self._worked = ""
        self.seconds = 0.0

    def look(self, since_s: float) -> None:
        """Look at the process, `since_s` after the last look."""
        try:
            states, worked = self._states(), self._work()
        except OSError:  # a thread, or all of it, has just ended
            self._worked = ""
            return
        is_asleep = bool(states) and states <= {"S"} and worked == self._worked
        self._worked = worked
        self.seconds = self.seconds + since_s if is_asleep else 0.0

    def _states(self) -> set[str]:
        return {(task / "stat").read_text().rpartition(")")[2].split()[0] for task in self._tasks.iterdir()}

    def _work(self) -> str:
        """Return what every thread has used of a processor, and for how long it has waited for one."""
        return "\n".join(sorted(f"{task.name} {(task / 'schedstat').read_text()}" for task in self._tasks.iterdir()))
