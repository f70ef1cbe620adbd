"""Branch coverage of what must not be wrong: prints the lines and branches that no test reaches, and fails if any are.

    PYTHONPATH=. python3 tools/branches.py [--workers N] [--keep FOLDER] [MODULE…]

Runs the test modules below (or those that are named, as `test_claims`) under coverage.py, in several processes, and
follows the processes that they start. Which parts of the engine are looked at, and what is left out of them, is said in
`pyproject.toml`. The exit status is that of the tests if one failed, else that of the report.

The modules are those of the parts that are looked at, and few others: not the campaigns, of which the same code is run
very often, and not `test_sqlite_lifecycle`, which holds processes to two seconds that being measured makes them miss.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["TESTS", "files_of", "main", "readable"]

ROOT: Final = Path(__file__).resolve().parent.parent
TESTS: Final[tuple[str, ...]] = (
    "test_agenda",
    "test_append_with",
    "test_approval_clocks",
    "test_approvals_after_loss",
    "test_artifacts",
    "test_between_two_calls",
    "test_broken_drives",
    "test_broken_people",
    "test_broken_projections",
    "test_broken_views",
    "test_claim_lost",
    "test_claims",
    "test_clock_regression",
    "test_codec",
    "test_compensation",
    "test_consumers",
    "test_contention",
    "test_drives",
    "test_earlier_attempts",
    "test_effects",
    "test_encrypted_streams",
    "test_entry",
    "test_erasure",
    "test_foreign_ends",
    "test_forged_erasures",
    "test_function_action",
    "test_guard",
    "test_head_check",
    "test_head_keeper",
    "test_http_request",
    "test_inline_views",
    "test_intent_proofs",
    "test_lost_subject_keys",
    "test_memory_log",
    "test_migration",
    "test_moments_of_drives",
    "test_open_arguments",
    "test_own_tables",
    "test_people",
    "test_progress",
    "test_projection_runner",
    "test_proposal",
    "test_rebuild",
    "test_reconcile",
    "test_restored",
    "test_row_actions",
    "test_run",
    "test_runner",
    "test_runner_arguments",
    "test_scanning",
    "test_secret_refs",
    "test_signed_approvals",
    "test_snapshots",
    "test_sqlite_failures",
    "test_sqlite_identity",
    "test_sqlite_log",
    "test_sqlite_memory",
    "test_sqlite_processes",
    "test_sqlite_tamper",
    "test_stored_heads",
    "test_stored_rows",
    "test_subject_keys",
    "test_subscriptions",
    "test_telemetry",
    "test_tree",
    "test_upcasting",
    "test_verify",
    "test_views",
    "test_whole_transactions",
    "test_worker",
    "test_workflow_acts",
    "test_workflow_cancellation",
    "test_workflow_failures",
    "test_workflow_families",
    "test_workflow_waits",
    "test_workflows",
    "test_write_file",
    "test_write_transactions",
    "test_writer",
)

_COVERAGE: Final = (sys.executable, "-m", "coverage")
_MEASURED: Final = "measured"
_SQLITE: Final = b"SQLite format 3\0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests and print the table. Return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(description="branch coverage of what stores, decides, performs and recovers")
    parser.add_argument("--workers", type=int, default=min(os.cpu_count() or 1, 8), help="how many processes test")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave what was measured there")
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="test modules (default: those that belong to it)")
    chosen = parser.parse_args(arguments)
    if chosen.keep is None:
        with tempfile.TemporaryDirectory(prefix="eventlog-branches-") as folder:
            return _measure(Path(folder), chosen.modules or TESTS, chosen.workers)
    chosen.keep.mkdir(parents=True, exist_ok=True)
    return _measure(chosen.keep.resolve(), chosen.modules or TESTS, chosen.workers)


def files_of(modules: Sequence[str]) -> list[str]:
    """Return the files of these test modules. Raises SystemExit for one that is not there."""
    files = [f"tests/{module}.py" for module in modules]
    if missing := [file for file in files if not (ROOT / file).is_file()]:
        raise SystemExit(f"coverage: there is no {', '.join(missing)}")
    return files


def readable(folder: Path) -> list[str]:
    """Return the files of what was measured that are whole: a process that was killed may have left the half of one."""
    found = []
    for path in sorted(folder.glob(f"{_MEASURED}.*")):
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                found.append(str(path))
    return found


def _measure(folder: Path, modules: Sequence[str], workers: int) -> int:
    environment = {**os.environ, "COVERAGE_FILE": str(folder / _MEASURED), "PYTHONPATH": str(ROOT)}
    spread = ["-n", str(workers)] if workers > 1 else []
    tests = _run([*_COVERAGE, "run", "-m", "pytest", "-q", *spread, *files_of(modules)], environment)
    _run([*_COVERAGE, "combine", "-q", *readable(folder)], environment)
    table = _run([*_COVERAGE, "report", "--show-missing", "--skip-covered", "--fail-under=100"], environment)
    return tests or table


def _run(command: list[str], environment: dict[str, str]) -> int:
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
