"""What holds for every test: the option `--long`, the markers, and a line that says what is being tested.

With pytest-xdist and `-n 2`, as `tools/dev.py test` runs them, the tests are spread by `spreading.py`.

The fixtures `clock` and `log` are those of runs that are resumed by a clock of the test; a module that needs another
log has a fixture of its own.

Markers (pyproject.toml describes them): a test marked `long` runs only with `--long`; tests marked `campaign` or
`processes` always run, except among the core tests. A campaign asks the fixture `is_long` how much of itself to run.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from eventlog.stores import MemoryLog, SqliteLog
from eventlog.testing.clock import FakeClock
from tests.effect_runs import whole_log

STARTS_PROCESSES = frozenset(
    {
        "test_bench",
        "test_cli",
        "test_cli_seed",
        "test_demo",
        "test_dev_tool",
        "test_eventsource_py",
        "test_eventsourcing",
        "test_outside_judges",
        "test_outside_suites",
        "test_readme",
        "test_sqlite_failures",
        "test_sqlite_lifecycle",
        "test_sqlite_processes",
        "test_testing",
        "test_testkit",
        "test_umadb",
        "test_verify",
        "test_write_file",
    }
)
"""Modules that start a process for nearly every test, or run suites of others: slow, and the same on each Python."""

# How long an example takes says more about who else uses the machine than about what is tested.
settings.register_profile("eventlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("eventlog")

LONG_IS_OFF = "long: runs with --long (python3 tools/dev.py test --long)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption(
        "--long", action="store_true", default=False, help="run the long tests and the full counts as well"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes that tests start share what is compiled, where Python is told to leave nothing beside sources.

    Otherwise each of many hundred compiles the whole engine for itself, which takes longer than what it is started for.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) and "PYTHONPYCACHEPREFIX" not in os.environ:
        folder = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="eventlog-bytecode-")
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Spread the tests in our own way; called by pytest-xdist alone, so nothing needs it to be there."""
    from tests.spreading import Spreading

    return Spreading(config, log)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what the results depend on."""
    long = "on" if config.getoption("--long") else "off"
    return f"eventlog: Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, long counts {long}"


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the modules that start processes; skip the long tests, saying so, unless they were asked for.

    Where the tests are spread over processes, those that take longest come first.
    """
    for item in items:
        if item.path.stem in STARTS_PROCESSES:
            item.add_marker(pytest.mark.processes)
    if hasattr(config, "workerinput"):
        items.sort(key=_kind)
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=LONG_IS_OFF))


def _kind(item: pytest.Item) -> int:
    """Return 0 for a campaign, 1 for what starts many processes, 2 for all else."""
    return next((kind for kind, name in enumerate(("campaign", "processes")) if item.get_closest_marker(name)), 2)


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether `--long` was asked for: a campaign then runs its full count, otherwise a smaller one."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands until the test moves it."""
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[MemoryLog | SqliteLog]:
    """A log in memory, then one in a file, that goes by `clock`; every event of it is verified in the end."""
    async with whole_log(request.param, tmp_path, clock=clock) as log:
        yield log
