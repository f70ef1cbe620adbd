"""`tools/faults.py`: its verdicts are right for campaigns that hold, fail, are short, hang or die, and for controls."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tools.campaigns.frame.campaign import Break, Goal, Work, WorkDone
from tools.campaigns.frame.copies import BreakDoesNotFit, broken, broken_copy

SAMPLE: Final = '''
"""A campaign whose behaviour is chosen by the environment."""
import asyncio, os, time
import eventlog.ids
from tools.campaigns.frame.campaign import Break, Campaign, Control, Goal, Work

BROKEN = hasattr(eventlog.ids, "BROKEN")

def run(work):
    how = os.environ.get("HOW", "")
    for number in range(work.goal("tries")):
        case = f"try {number}"
        if not work.wants(case):
            continue
        print("chance", case, work.chance(case).random())
        work.count("tries")
        if BROKEN or work.control == "forgets" or (how == "violated" and number == 1):
            work.violation("I1", case, f"lost {number}")
        if how == "in_a_group":
            asyncio.run(in_a_group(work, case))
        if how == "short":
            break
    if how == "stuck":
        time.sleep(60)
    if how == "died":
        raise KeyError("something")

async def in_a_group(work, case):
    async def violate():
        for _ in range(30):
            work.violation("I2", case, "a gap")
    async with asyncio.TaskGroup() as group:
        group.create_task(violate())
        group.create_task(asyncio.sleep(60))

CAMPAIGN = Campaign(
    name="NAME", title="something is tried", promise="nothing is lost", faults=("F09",), invariants=("I1",),
    run=run, goals={"tries": Goal(3, 30, 2)}, cases="try [0-9]+",
    limit_s=Goal(2, 2, 2) if os.environ.get("HOW") == "stuck" else Goal(50, 50, 50),
    controls=(
        Control("broken_ids", "ids are broken", (Break("eventlog/ids.py", "FIRST", "FIRST"),)),
        Control("forgets", "something forgets", shows="^I1 try 1"),
        Control("harmless", "nothing is broken"),
    ),
    lacks=lambda: "a moon" if os.environ.get("HOW") == "lacks" else None,
)
'''
FIRST_LINE: Final = '"from __future__ import annotations", "from __future__ import annotations\\nBROKEN = 1"'


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project whose only campaigns are the sample, by two names."""
    root = broken_copy(tmp_path_factory.mktemp("copy"), ())
    catalogue = root / "tools" / "campaigns" / "catalogue.py"
    for name in ("sample", "other"):
        sample = SAMPLE.replace('"FIRST", "FIRST"', FIRST_LINE).replace("NAME", name)
        (catalogue.parent / f"{name}.py").write_text(sample, encoding="utf-8")
    names = re.sub(
        r"NAMES: Final = \(.*?\n\)", 'NAMES: Final = ("sample", "other")', catalogue.read_text(), flags=re.DOTALL
    )
    catalogue.write_text(names, encoding="utf-8")
    shared_memory = root / "tools" / "campaigns" / "storage" / "shared_memory.py"
    own = shared_memory.read_text().replace('Path("/dev/shm")', f"Path({str(root / 'memory')!r})")
    shared_memory.write_text(own, encoding="utf-8")
    for name in ("memory", "temporary"):
        (root / name).mkdir()
    return root


def faults(project: Path, *words: str, how: str = "", **environment: str) -> tuple[int, str, dict[str, Any]]:
    """Run the tool and return its exit status, what it printed and the report."""
    report = project / "report.json"
    report.unlink(missing_ok=True)
    command = [sys.executable, str(project / "tools" / "faults.py"), *words, "--json", str(report)]
    done = subprocess.run(
        command,
        env={"PATH": "/usr/bin:/bin", "HOW": how, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, json.loads(report.read_text()) if report.exists() else {}


def verdicts(report: dict[str, Any]) -> list[str]:
    return [each["verdict"] for each in report["results"]]


class TestAVerdict:
    @pytest.mark.parametrize("how", ["held", "violated", "short", "stuck", "died"])
    def test_says_how_a_campaign_ended_and_only_one_that_held_is_a_success(self, project: Path, how: str) -> None:
        status, said, report = faults(project, "sample", "--no-controls", "--seed", "7", how=how)
        assert (verdicts(report), status) == ([how], 0 if how == "held" else 1)
        assert f"sample                               {how}" in said

    def test_of_a_control_is_fired_only_if_the_right_violation_was_seen(self, project: Path) -> None:
        status, said, report = faults(project, "sample", "--seed", "7")
        assert verdicts(report) == ["held", "fired", "fired", "silent"]
        assert status == 1
        assert "2 of 3 controls fired" in said
        assert [len(each["violations"]) for each in report["results"]] == [0, 1, 2, 0]

    def test_is_skipped_where_the_machine_lacks_something_and_has_failed_in_ci(self, project: Path) -> None:
        for ci, expected in (("", 0), ("true", 1)):
            status, said, report = faults(project, "sample", "--no-controls", how="lacks", CI=ci)
            assert (verdicts(report), status) == (["skipped"], expected)
            assert "this machine lacks a moon" in said

    def test_is_given_though_the_campaign_ends_inside_a_task_group(self, project: Path) -> None:
        _, _, report = faults(project, "sample", "--no-controls", how="in_a_group")
        assert (verdicts(report), len(report["results"][0]["violations"])) == (["violated"], 20)


def heed() -> None:
    """Heed what may be ignored where the tests run, as behind nohup or in the background."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def begun(project: Path, how: str, *words: str, before: Any = heed) -> Iterator[subprocess.Popen[str]]:
    """Start the tool, and wait for its first line."""
    with subprocess.Popen(
        [sys.executable, str(project / "tools" / "faults.py"), *words],
        env={"PATH": "/usr/bin:/bin", "HOW": how, "TMPDIR": str(project / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=before,
    ) as process:
        assert process.stdout is not None
        assert "fast tier" in process.stdout.readline()
        yield process


def left_of(project: Path) -> list[str]:
    """Return the folders and the processes of the tool that are there."""
    folders = [str(path) for name in ("memory", "temporary") for path in (project / name).iterdir()]
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return folders + [each.decode() for each in commands if str(project / "tools").encode() in each]


class TestASignal:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    def test_ends_all_at_once_and_leaves_nothing_whenever_it_comes(self, project: Path, number: int) -> None:
        for delay_s in (0, 0.003, 0.01, 0.02, 0.05, 0.1, 0.3):
            with begun(project, "stuck") as process:
                time.sleep(delay_s)
                process.send_signal(number)
                assert process.wait(10) == 128 + number
            assert left_of(project) == [], delay_s

    def test_that_comes_again_while_all_is_being_ended_changes_nothing(self, project: Path) -> None:
        for pause_s in (0, 0.005, 0.05, 0.06):
            with begun(project, "stuck") as process:
                time.sleep(0.2)
                for _ in range(3):
                    process.send_signal(signal.SIGINT)
                    time.sleep(pause_s)
                assert process.wait(10) == 128 + signal.SIGINT
            assert left_of(project) == [], pause_s

    def test_that_is_ignored_as_behind_nohup_stays_ignored(self, project: Path) -> None:
        ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
        with begun(project, "held", "--no-controls", before=ignore) as process:
            process.send_signal(signal.SIGHUP)
            assert process.wait(30) == 0


class TestAReplay:
    def test_runs_the_case_alone_and_ends_as_it_did(self, project: Path) -> None:
        _, said, report = faults(project, "sample", "--no-controls", "--seed", "7", how="violated")
        assert "again: python tools/faults.py --seed 7 --case 'try 1' sample" in said
        status, _, again = faults(project, "sample", "--seed", "7", "--case", "try 1", how="violated")
        assert (status, again["results"][0]["counts"]) == (1, {"tries": 1})
        assert again["results"][0]["violations"] == report["results"][0]["violations"]

    def test_of_a_case_that_is_not_there_shows_nothing_and_has_failed(self, project: Path) -> None:
        status, said, report = faults(project, "sample", "--seed", "7", "--case", "try 10")
        assert (verdicts(report), status) == (["short"], 1)
        assert "no case 'try 10' was run" in said
        status, _, report = faults(project, "sample", "--seed", "7", "--case", "try 10", "--long")
        assert (verdicts(report), status) == (["held"], 0)

    def test_of_a_control_shows_that_case_alone(self, project: Path) -> None:
        words = ("sample", "--seed", "7", "--control", "broken_ids", "--case")
        _, _, report = faults(project, *words, "try 1")
        assert [each["case"] for each in report["results"][0]["violations"]] == ["try 1"]
        status, said, _ = faults(project, *words, "try 10")
        assert (status, "no case 'try 10' was run" in said) == (1, True)

    def test_has_the_same_chance_whatever_ran_before(self) -> None:
        work = Work(tier="fast", seed=7, folder=Path(), memory=Path(), goals={})
        first, again = work.chance("try 1").random(), work.chance("try 1").random()
        assert first == again
        assert first != work.chance("try 2").random()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "no campaign is called nonsense"),
        (["sample", "--control", "nonsense"], "sample has no control called nonsense"),
        (["sample", "other", "--control", "forgets"], "name it"),
        (["sample", "--case", "try 1"], "--case needs the --seed"),
        (["sample", "--scale", "0"], "--scale has to be above 0"),
        (["sample", "--fast", "--long"], "not allowed with"),
        (["sample", "--publish", "--no-controls"], "only whole campaigns are published"),
        (["sample", "--seed", "7", "--case", "7"], "sample has no case '7': their names match try [0-9]+"),
        (["--readme", "nowhere.json"], "nowhere.json cannot be read as a report"),
        (["--readme", __file__], "cannot be read as a report"),
    ],
)
def test_words_that_make_no_sense_are_refused_before_anything_runs(project: Path, words: list[str], said: str) -> None:
    status, printed, report = faults(project, *words)
    assert (status, report) == (2, {})
    assert said in printed


def test_of_some_campaigns_the_report_is_published_in_place_of_what_there_was_of_them(project: Path) -> None:
    published = project / "tools" / "campaigns" / "published.json"
    faults(project, "--publish", "--seed", "7")
    faults(project, "other", "--publish", "--seed", "8")
    whole = json.loads(published.read_bytes())
    assert whole["seed"] == 7
    assert {(each["campaign"], each["seed"]) for each in whole["results"]} == {("sample", 7), ("other", 8)}
    assert len(whole["results"]) == 8
    status, said, _ = faults(project, "other", "--publish", "--long")
    assert (status, "of the other tier" in said) == (2, True)
    assert json.loads(published.read_bytes()) == whole


@pytest.mark.parametrize("place", [".", "nowhere/report.json"])
def test_a_report_that_cannot_be_written_is_told_before_anything_runs(project: Path, place: str) -> None:
    command = [sys.executable, "tools/faults.py", "sample", "--json", place]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--json: no file can be written at {place}" in done.stderr


def test_a_report_that_is_lost_to_a_full_disk_takes_no_result_along(project: Path) -> None:
    command = [sys.executable, "tools/faults.py", "sample", "--no-controls", "--json", "/dev/full"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "1 of 1 campaigns held" in done.stdout
    assert done.stderr == "the report is not written: [Errno 28] No space left on device\n"


def test_a_report_says_what_was_asked_for(project: Path) -> None:
    _, _, report = faults(project, "sample", "--long", "--no-controls", "--seed", "7", "--case", "try 1")
    assert report["command"] == "python tools/faults.py --long --seed 7 --case 'try 1' --no-controls sample"
    _, _, report = faults(project, "sample", "--control", "forgets")
    assert report["command"] == "python tools/faults.py --fast --control forgets sample"


def test_a_scale_multiplies_the_counts_that_have_to_be_reached(project: Path) -> None:
    _, _, report = faults(project, "sample", "--no-controls", "--scale", "4")
    assert report["results"][0]["counts"] == {"tries": 12}
    assert report["command"] == "python tools/faults.py --fast --scale 4 --no-controls sample"


class TestABreak:
    def test_of_text_that_is_not_there_exactly_once_is_refused(self) -> None:
        for source in ("", "x = 1\nx = 1\n"):
            with pytest.raises(BreakDoesNotFit, match=r"some\.py: what is to be broken is there [02] times"):
                broken(source, Break("some.py", "x = 1", "x = 2"))

    def test_that_changes_nothing_is_refused(self) -> None:
        with pytest.raises(BreakDoesNotFit, match="nothing is broken"):
            broken("x = 1", Break("some.py", "x = 1", "x = 1"))

    def test_is_made_in_the_copy_alone(self, tmp_path: Path) -> None:
        line = "from __future__ import annotations"
        root = broken_copy(tmp_path, [Break("eventlog/ids.py", line, f"{line}\nBROKEN = 1")])
        assert "BROKEN" in (root / "eventlog" / "ids.py").read_text()
        assert "BROKEN" not in Path("eventlog/ids.py").read_text()


class TestWork:
    def test_ends_after_twenty_violations_and_under_a_control_after_the_right_one(self) -> None:
        work = Work(tier="fast", seed=1, folder=Path(), memory=Path(), goals={})
        with pytest.raises(WorkDone):
            for number in range(30):
                work.violation("I1", f"try {number}", "lost")
        assert len(work.violations) == 20
        control = Work(tier="fast", seed=1, folder=Path(), memory=Path(), goals={}, control="some", shows="^I2 ")
        control.violation("I1", "try 1", "lost")
        with pytest.raises(WorkDone):
            control.violation("I2", "try 2", "a gap")

    def test_goes_on_under_a_control_until_what_is_broken_shows_itself_whatever_else_breaks(self) -> None:
        control = Work(tier="long", seed=1, folder=Path(), memory=Path(), goals={}, control="some", shows="^I6 ")
        for number in range(30):
            control.violation("I1", f"try {number}", "another state than it should be")
        with pytest.raises(WorkDone):
            control.violation("I6", "try 30", "a result without its effect")
        assert len(control.violations) == 21
        assert control.violations[-1].invariant == "I6"

    def test_knows_how_often_by_tier_control_and_scale(self) -> None:
        goals = {"tries": Goal(10, 1000, 3)}
        assert Work(tier="fast", seed=1, folder=Path(), memory=Path(), goals=goals).goal("tries") == 10
        assert Work(tier="long", seed=1, folder=Path(), memory=Path(), goals=goals).goal("tries") == 1000
        assert Work(tier="fast", seed=1, folder=Path(), memory=Path(), goals=goals, scale=0.01).goal("tries") == 1
        assert Work(tier="long", seed=1, folder=Path(), memory=Path(), goals=goals, control="some").goal("tries") == 3
