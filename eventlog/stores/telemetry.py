"""Structured log lines, over the standard library's logger `eventlog`.

Silent until the application asks: the logger has only a NullHandler, and nothing is configured globally. Lines carry
names and numbers (run_id, stream, version, position), never a body.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

__all__ = ["LOGGER", "is_debugging", "logger"]

LOGGER: Final = logging.getLogger("eventlog")
LOGGER.addHandler(logging.NullHandler())


def is_debugging() -> bool:
    """Say whether a debug line would be seen, so that hot paths can skip making one."""
    return LOGGER.isEnabledFor(logging.DEBUG)


def _render(_logger: Any, event: str, fields: MutableMapping[str, Any]) -> str:
    name = fields.pop("event")
    return " ".join([str(name), *(f"{key}={value!r}" for key, value in fields.items())])


def _drop_unseen(wrapped: Any, method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if not wrapped.isEnabledFor(getattr(logging, method.upper())):
        raise structlog.DropEvent
    return fields


logger: Final[structlog.stdlib.BoundLogger] = structlog.wrap_logger(
    LOGGER, wrapper_class=structlog.stdlib.BoundLogger, processors=[_drop_unseen, _render]
)
