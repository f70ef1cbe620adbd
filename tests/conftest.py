"""What holds for every test: the option `--long`, the markers, and a line that says what is being tested.

Markers (pyproject.toml describes them): a test marked `long` runs only with `--long`; a test marked `campaign` always
runs, except among the core tests. A campaign asks the fixture `is_long` how much of itself to run.
"""

from __future__ import annotations

import platform
import sqlite3

import pytest

LONG_IS_OFF = "long: runs with --long (python3 tools/dev.py test --long)"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption(
        "--long", action="store_true", default=False, help="run the long tests and the full counts as well"
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Say what the results depend on."""
    long = "on" if config.getoption("--long") else "off"
    return f"eventlog: Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, long counts {long}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the long tests, saying so, unless they were asked for."""
    if config.getoption("--long"):
        return
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.skip(reason=LONG_IS_OFF))


@pytest.fixture(scope="session")
def is_long(request: pytest.FixtureRequest) -> bool:
    """Whether `--long` was asked for: a campaign then runs its full count, otherwise a smaller one."""
    return bool(request.config.getoption("--long"))
