"""Text from the log, from a file name or from a view, made safe to show; it lives in `eventlog.text`."""

from __future__ import annotations

from eventlog.text import escaped_json, is_hidden, shortened, visible

__all__ = ["escaped_json", "is_hidden", "shortened", "visible", "why_unreadable"]


def why_unreadable(error: OSError | ValueError) -> str:
    """Return why a file that was named cannot be opened, without its number and without its name once more."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
