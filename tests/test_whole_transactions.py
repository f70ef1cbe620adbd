"""A COMMIT that proves nothing is settled like an append's, whatever was committed: erasures, restores, kept heads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import whole_scenarios
from tests.needs import need, need_command
from tools.campaigns.processes import child
from tools.campaigns.storage.libc_faults import build_shim, shim_environment

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(sys.platform == "linux", "LD_PRELOAD, as Linux has it")
    return build_shim(tmp_path_factory.mktemp("shim"), need_command("gcc"))


@pytest.fixture
def run(shim: Path, tmp_path: Path) -> Run:
    environment = shim_environment(shim, tmp_path / "faults")
    return lambda scenario, *words: child.run(scenario, tmp_path / "log.db", *words, env=environment).result


@pytest.mark.parametrize("works", ["works", "fails"])
def test_erasure_whose_sync_fails_is_settled_behind_a_barrier_and_told_as_it_is(run: Run, works: str) -> None:
    seen = run(whole_scenarios.erasure_sync_fails, 1, works)
    assert seen["hits"] == 1
    assert "barrier_recorded" in seen["types"]
    ((position, erased_by),) = seen["noted"]
    assert position == 1 and seen["told"] == [erased_by] and seen["gone"] == 1
    assert seen["types"][erased_by - 1] == "payload_erased" and seen["types"].count("payload_erased") == 1
    assert (seen["again"], seen["state"], seen["problems"]) == ([], "open", 0)


def test_erasure_without_a_fault_needs_no_barrier(run: Run) -> None:
    seen = run(whole_scenarios.erasure_sync_fails, 0, "fails")
    assert (seen["hits"], seen["told"], seen["noted"]) == (0, [3], [[1, 3]])
    assert seen["types"] == ["noted", "noted", "payload_erased"]


def test_erasure_on_a_disk_that_keeps_failing_is_told_as_unknown(run: Run) -> None:
    seen = run(whole_scenarios.erasure_sync_fails, whole_scenarios.KEEPS_FAILING, "fails")
    assert (seen["told"], seen["state"]) == ("commit_outcome_unknown", "poisoned")
    assert seen["types"].count("payload_erased") == 1 and seen["gone"] == 1 and seen["problems"] == 0


def test_append_behind_an_erasure_in_doubt_is_not_written_by_the_same_connection(run: Run) -> None:
    seen = run(whole_scenarios.append_meets_what_an_erasure_has_left)
    assert (seen["erased"], seen["version"], seen["gone"], seen["problems"]) == (1, 1, 1, 0)
    assert seen["barrier"] < seen["position"]
    assert seen["types"].count("noted") == 3


def test_view_write_whose_sync_fails_is_told_as_unknown_and_the_log_goes_on(run: Run) -> None:
    seen = run(whole_scenarios.view_write_fails, "sync")
    assert seen.pop("barriers") >= 1
    assert seen.pop("counted") in (1, 2)
    assert seen == {"told": "commit_outcome_unknown", "hits": 1, "state": "open"}


def test_view_write_that_fails_is_told_as_definite_and_the_log_is_opened_again_for_the_next(run: Run) -> None:
    seen = run(whole_scenarios.view_write_fails, "write")
    assert seen.pop("barriers") >= 1
    assert seen == {"told": "store_io_error", "hits": 1, "state": "poisoned", "counted": 1}


def test_head_whose_keeping_fails_at_the_sync_poisons_the_connection_and_the_log_goes_on(run: Run) -> None:
    seen = run(whole_scenarios.kept_head_sync_fails)
    assert (seen["hits"], seen["state"]) == (1, "open") and seen["barriers"] >= 1
    assert seen["kept"][-1] == seen["signed"][-1] >= 3


@pytest.mark.parametrize("works", ["works", "fails"])
def test_restore_whose_sync_fails_is_told_as_the_log_has_it(run: Run, works: str) -> None:
    seen = run(whole_scenarios.restore_fails, "sync", 1, works)
    assert seen["hits"] == 1 and "barrier_recorded" in seen["types"]
    declared = {"told": "declared", "incarnations": 2}
    lost = {"told": "store_io_error", "incarnations": 1}
    assert {name: seen[name] for name in declared} in (declared, lost)
    assert seen["types"].count("log_restored") == seen["incarnations"] - 1


def test_restore_without_a_fault_is_declared_without_a_barrier(run: Run) -> None:
    seen = run(whole_scenarios.restore_fails, "sync", 0, "fails")
    assert seen == {"told": "declared", "hits": 0, "incarnations": 2, "types": ["noted", "noted", "log_restored"]}


def test_restore_whose_write_fails_is_not_declared(run: Run) -> None:
    seen = run(whole_scenarios.restore_fails, "write", 1, "fails")
    assert seen == {"told": "store_io_error", "hits": 1, "incarnations": 1, "types": ["noted", "noted"]}


def test_restore_on_a_disk_that_keeps_failing_is_told_as_unknown(run: Run) -> None:
    seen = run(whole_scenarios.restore_fails, "sync", whole_scenarios.KEEPS_FAILING, "fails")
    assert seen["told"] == "commit_outcome_unknown"
    assert seen["types"].count("log_restored") == seen["incarnations"] - 1
