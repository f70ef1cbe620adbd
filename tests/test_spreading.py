"""The tests are spread over processes so that what shares something stays together, and nothing is lost on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.needs import need

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def xdist() -> None:
    need(find_spec("xdist") is not None, "pytest-xdist, which the extra `dev` installs")


def test_a_module_stays_together_and_so_does_the_folder_that_counts_its_own_outcomes() -> None:
    from tests.spreading import group_of

    assert group_of("tests/test_log.py::TestRead::test_one[a::b]") == group_of("tests/test_log.py::test_two")
    assert group_of("tests/test_log.py::test_one") != group_of("tests/test_run.py::test_one")
    assert group_of("tests/conformance/test_umadb.py::test_it") == group_of("tests/conformance/test_installed.py::test")


def test_two_processes_without_a_terminal_run_each_module_once_and_say_what_was_skipped() -> None:
    modules = [f"tests/test_{name}.py" for name in ("public_api", "aiosqlite_guard", "kill_audit", "paused_agent")]
    chosen = "public_api or aiosqlite_guard or second_crash"
    options = ["-v", "-n", "2", "-p", "no:cacheprovider", "-k", chosen]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *modules],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran_in: defaultdict[str, set[str]] = defaultdict(set)
    for process, module in re.findall(r"^\[(gw\d)\].* (?:PASSED|SKIPPED) (\S+?)::", done.stdout, re.MULTILINE):
        ran_in[module].add(process)
    assert {module: len(processes) for module, processes in ran_in.items()} == {
        "tests/test_public_api.py": 1,
        "tests/test_aiosqlite_guard.py": 1,
        "tests/test_paused_agent.py": 1,
    }
    assert set.union(*ran_in.values()) == {"gw0", "gw1"}
    assert re.search(r"^SKIPPED \[3\] .*long: runs with --long", done.stdout, re.MULTILINE), "its reason is in the end"
