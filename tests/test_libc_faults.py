"""The shim in front of libc fails the calls that it is told to fail, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import libc_scenarios
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    (tmp_path / "shim").mkdir()
    return shim_environment(build_shim(tmp_path / "shim", need_command("gcc")), tmp_path / "shim" / "table")


def test_each_kind_of_call_fails_below_its_folder_and_nowhere_else(tmp_path: Path, environment: dict[str, str]) -> None:
    seen = child.run(libc_scenarios.each_call_fails_where_it_is_told_to, tmp_path, env=environment).result
    assert seen == {operation: ["EIO", "ok", 1, "ok"] for operation in libc_scenarios._CALLS}


def test_write_is_short_or_torn_and_a_call_that_failed_can_have_worked(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    seen = child.run(libc_scenarios.half_a_write, tmp_path, env=environment).result
    assert seen == {
        "short": 5,
        "passed": 10,
        "torn": "EIO",
        "seen": 2,
        "size": 20,
        "late": "EIO",
        "is_there": False,
    }
