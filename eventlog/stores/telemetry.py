"""Structured log lines, over the standard library's logger `eventlog`.

Silent until the application asks: the logger has only a NullHandler, and nothing is configured globally. Lines carry
names and numbers (run_id, stream, version, position), never a body.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import structlog

__all__ = ["LOGGER", "Telemetry", "is_debugging", "logger"]

LOGGER: Final = logging.getLogger("eventlog")
LOGGER.addHandler(logging.NullHandler())


class Telemetry:
    """Writes lines of a level. A line that nobody will see costs one question, and not the import of structlog."""

    def debug(self, event: str, **facts: Any) -> None:
        """What happens all the time: appends, WAL checkpoints."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            _structlog().debug(event, **facts)

    def info(self, event: str, **facts: Any) -> None:
        """Refusals and conflicts."""
        if LOGGER.isEnabledFor(logging.INFO):
            _structlog().info(event, **facts)

    def warning(self, event: str, **facts: Any) -> None:
        """What an operator should know of, though the store copes with it."""
        if LOGGER.isEnabledFor(logging.WARNING):
            _structlog().warning(event, **facts)

    def error(self, event: str, **facts: Any) -> None:
        """What the store cannot cope with alone."""
        if LOGGER.isEnabledFor(logging.ERROR):
            _structlog().error(event, **facts)

    def exception(self, event: str, **facts: Any) -> None:
        """A fault of the program itself, with its trace."""
        if LOGGER.isEnabledFor(logging.ERROR):
            _structlog().error(event, exc_info=True, **facts)


logger: Final = Telemetry()


def is_debugging() -> bool:
    """Say whether a debug line would be seen, so that hot paths can skip making one."""
    return LOGGER.isEnabledFor(logging.DEBUG)


@cache
def _structlog() -> structlog.stdlib.BoundLogger:
    import structlog

    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        LOGGER, wrapper_class=structlog.stdlib.BoundLogger, processors=[_render]
    )
    return bound


def _render(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    name = fields.pop("event")
    exc_info = fields.pop("exc_info", None)
    line = " ".join([str(name), *(f"{key}={value!r}" for key, value in fields.items())])
    return (line,), {"exc_info": exc_info}
