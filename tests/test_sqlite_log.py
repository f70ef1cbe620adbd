"""The log in an SQLite file keeps the contract."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog.testing.log_contract import LogContract, NewLog, OpenableLog


class TestSqliteLog(LogContract):
    @pytest.fixture
    def new_log(self, tmp_path: Path) -> NewLog:
        names = itertools.count()

        def new(**options: Any) -> OpenableLog:
            return eventlog.open(tmp_path / f"{next(names)}.db", **options)

        return new
