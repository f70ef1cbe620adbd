"""Run the outside suites and print what passed, as a table for the README: python tests/conformance/summary.py"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.conformance.not_applicable import NOT_APPLICABLE, SUITES_LEFT_OUT  # noqa: E402 the path comes first
from tests.conformance.outcomes import OUTCOMES, Outcomes  # noqa: E402
from tests.conformance.suites import SUITES  # noqa: E402

__all__ = ["main", "table"]


class _Keeper:
    """Keeps what the run counted, for after it has ended."""

    def __init__(self) -> None:
        self.outcomes = Outcomes()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.outcomes = session.config.stash[OUTCOMES]


def main() -> int:
    """Print the table; pytest's own output goes to the error stream. Return pytest's exit status."""
    keeper = _Keeper()
    with redirect_stdout(sys.stderr):
        folder = Path(__file__).resolve().parent
        arguments = [str(folder), "-q", f"--rootdir={ROOT}", f"--config-file={ROOT / 'pyproject.toml'}"]
        status = pytest.main([*arguments, "-p", "no:cacheprovider"], plugins=[keeper])
    print("\n".join(table(keeper.outcomes)))
    return int(status)


def table(outcomes: Outcomes) -> Iterator[str]:
    """Give the lines of the table, and below it the reasons for what does not apply."""
    yield "| package | suite | cases | passed | not applicable |"
    yield "|---|---|---|---|---|"
    for suite in SUITES:
        listed = sum(case.suite == suite.name for case in NOT_APPLICABLE)
        yield f"| {suite.package} | {suite.name} | {suite.cases} | {outcomes.passed[suite]} | {listed or '–'} |"
    for left_out in SUITES_LEFT_OUT:
        yield f"| eventsource-py 0.8.1 | {left_out.suite} | {left_out.cases} | – | {left_out.cases} |"
    cases = sum(suite.cases for suite in SUITES) + sum(left_out.cases for left_out in SUITES_LEFT_OUT)
    yield f"| | **all** | **{cases}** | **{outcomes.passed.total()}** | **{_not_applicable()}** |"
    yield ""
    for case in NOT_APPLICABLE:
        yield f"- {case.suite}, `{case.case}`: {case.reason}."
    for left_out in SUITES_LEFT_OUT:
        yield f"- {left_out.suite}: {left_out.reason}."


def _not_applicable() -> int:
    return len(NOT_APPLICABLE) + sum(left_out.cases for left_out in SUITES_LEFT_OUT)


if __name__ == "__main__":
    sys.exit(main())
