"""The log in an SQLite file."""

from eventlog.stores.sqlite.log import SqliteLog
from eventlog.stores.sqlite.views import InlineView

__all__ = ["InlineView", "SqliteLog"]
