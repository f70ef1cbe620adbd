"""Text from the log, from a file name or from a view, made safe to show; it lives in `eventlog.text`."""

from __future__ import annotations

from eventlog.text import escaped_json, is_hidden, shortened, visible

__all__ = ["escaped_json", "is_hidden", "shortened", "visible"]
