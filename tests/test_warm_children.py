"""Children that are forked from a warm program end as every Python program does, and a hang is told from being slow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.campaigns.lifecycle import endings
from tools.campaigns.lifecycle.scenarios import SCENARIOS
from tools.campaigns.processes.idleness import Idleness
from tools.campaigns.processes.warm import Warm

SLEEPS = "import time; time.sleep(60)"
WORKS = "while True: pass"


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm([endings.__name__]) as program:
        yield program


def test_a_child_tells_what_it_returned_said_and_ended_with(warm: Warm, tmp_path: Path) -> None:
    with warm.start(endings.exits_inside, tmp_path / "log.db", folder=tmp_path) as child:
        assert child.waits_to_end(limit_s=30, idle_limit_s=10, before_s=30)
    assert (child.returncode, child.result, child.stderr) == (3, None, "")
    with warm.start(endings.cannot_get_the_lock, tmp_path / "log.db", "closed", folder=tmp_path) as child:
        assert child.has_said("READY", timeout_s=30)
        child.tell("go on\n")
        assert child.waits_to_end(limit_s=30, idle_limit_s=10, before_s=30)
    assert (child.returncode, child.result) == (0, ["ok", "ok"])


def test_a_child_that_does_not_end_is_noticed_and_ended(warm: Warm, tmp_path: Path) -> None:
    with warm.start(endings.appends_until_interrupted, tmp_path / "log.db", folder=tmp_path) as child:
        assert child.has_said("READY", timeout_s=30)
        child.leave()
        assert not child.waits_to_end(limit_s=0.1, idle_limit_s=10, before_s=30)
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="the kernel does not say who works")
@pytest.mark.parametrize(("program", "is_idle"), [(SLEEPS, True), (WORKS, False)])
def test_a_process_that_sleeps_is_idle_and_one_that_works_is_not(program: str, is_idle: bool) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", f"print(flush=True); {program}"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        idleness = Idleness(process.pid)
        for _ in range(50):
            idleness.look(1.0)
            os.sched_yield()
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        assert (idleness.seconds > 10) == is_idle
    finally:
        process.kill()
        process.communicate()


def test_there_are_thirty_scenarios_at_least_and_each_has_a_name_of_its_own() -> None:
    names = {scenario.name for scenario in SCENARIOS}
    assert len(names) == len(SCENARIOS) >= 30
