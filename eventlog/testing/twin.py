"""A twin of a workflow: the same code under the same fingerprint, with somebody between it and what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Final

from eventlog.runtime.context import RunContext
from eventlog.runtime.definitions import Workflow
from eventlog.runtime.drive import Drive

__all__ = ["Question", "Twin"]

Answer = Coroutine[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """One thing that the workflow asks for, under its step key: `operation(drive, asked, *args)` would answer it."""

    drive: Drive
    operation: Callable[..., Answer]
    name: str
    key: str
    args: tuple[Any, ...]

    @property
    def run_id(self) -> str:
        """The run that asks."""
        return self.drive.run.run_id

    def pass_on(self, *args: Any) -> Answer:
        """Return the engine's own answer, to these arguments instead of `args` if any are given."""
        return self.put_to(self.operation, *(args or self.args))

    def put_to(self, operation: Callable[..., Answer], *args: Any) -> Answer:
        """Return what another operation answers in the place of the engine's."""
        return self.drive.answer(operation, self.drive.ask(self.name, self.key), *args)


class Twin(Workflow):
    """The twin of `workflow`, whose questions `answer` answers. It goes on with runs of `continues` too."""

    def __init__(
        self, workflow: Workflow, answer: Callable[[Question], Answer], *, continues: Iterable[str] = ()
    ) -> None:
        super().__init__(
            workflow.function,
            name=workflow.name,
            version=workflow.definition.version,
            continues=(*workflow.continues, *continues),
        )
        self._answer: Final = answer

    async def __call__(self, context: Any, *args: Any) -> Any:
        """Call the function with a context that puts its questions to somebody else."""
        return await self.function(_TwinContext(context, self._answer), *args)


class _TwinContext(RunContext):
    def __init__(self, context: RunContext, answer: Callable[[Question], Answer]) -> None:
        super().__init__(context._drive)
        self._answer: Final = answer

    def _ask(self, operation: Callable[..., Answer], name: str, key: str, *args: Any) -> Answer:
        return self._answer(Question(self._drive, operation, name, key, args))
