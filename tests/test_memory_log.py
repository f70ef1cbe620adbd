"""The log in memory keeps the contract."""

from __future__ import annotations

from typing import Any

import pytest

import eventlog
from eventlog.testing.log_contract import LogContract, NewLog, OpenableLog


class TestMemoryLog(LogContract):
    @pytest.fixture
    def new_log(self) -> NewLog:
        def new(**options: Any) -> OpenableLog:
            return eventlog.open("memory:", **options)

        return new
