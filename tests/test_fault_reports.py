"""What the fault campaigns are told as: a line for each result, the last line, and the tables of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.command_line import ROOT
from tools.bench.machine import Machine
from tools.campaigns import catalogue
from tools.campaigns.frame import reports
from tools.campaigns.frame.campaign import Campaign, Control, Goal
from tools.campaigns.frame.results import Report, Result, Shown, load, save, with_results_of, without_details

PUBLISHED: Final = ROOT / "tools" / "campaigns" / "published.json"
CAMPAIGN: Final = Campaign(
    name="kills",
    title="a writer is killed",
    promise="nothing is lost",
    faults=("F09",),
    invariants=("I1",),
    run=lambda work: None,
    goals={"kills": Goal(1, 2, 3)},
    controls=(Control("early", "acknowledged too early"), Control("twice", "written twice")),
)


def result(**fields: Any) -> Result:
    given: dict[str, Any] = {"campaign": "kills", "control": None, "seed": 7, "verdict": "held", **fields}
    return Result(**given)


def report(*results: Result) -> Report:
    return Report(
        command="python tools/faults.py --long",
        tier="long",
        seed=7,
        began="2026-01-02",
        seconds=90.0,
        machine=Machine(cpu="cpu", cores=2, kernel="k", file_system="f", python="p", sqlite="s"),
        results=list(results),
    )


class TestALine:
    def test_says_what_was_counted(self) -> None:
        (line,) = reports.lines_of(result(counts={"kills": 20_000}, notes={"rate": "30/s"}))
        assert line.split() == ["kills", "held", "0.0", "s", "20,000", "kills;", "rate", "30/s"]

    def test_of_a_violation_says_how_to_see_it_again(self) -> None:
        violations = [Shown("I1", f"kill {number}", "lost") for number in range(7)]
        lines = list(reports.lines_of(result(verdict="violated", violations=violations)))
        assert "    again: python tools/faults.py --seed 7 --case 'kill 0' kills" in lines
        assert lines[-1] == "    and 2 more"

    def test_of_a_violation_names_the_tier_and_the_scale_that_have_the_case(self) -> None:
        shown = [Shown("I1", "kill 0", "lost")]
        lines = list(reports.lines_of(result(verdict="violated", violations=shown, tier="long", scale=0.5)))
        assert lines[-1] == "    again: python tools/faults.py --long --scale 0.5 --seed 7 --case 'kill 0' kills"

    def test_of_a_campaign_that_was_short_says_of_what(self) -> None:
        assert list(reports.lines_of(result(verdict="short", why="1 kills of 2")))[1] == "    1 kills of 2"

    def test_of_a_control_says_what_it_was_seen_by(self) -> None:
        fired = result(control="early", verdict="fired", violations=[Shown("I1", "kill 3", "lost")])
        assert list(reports.lines_of(fired))[1] == "    I1 kill 3: lost"


class TestTheLastLine:
    def test_counts_campaigns_violations_and_controls(self) -> None:
        whole = report(
            result(),
            result(verdict="violated", violations=[Shown("I1", "kill 3", "lost")]),
            result(control="early", verdict="fired", violations=[Shown("I1", "kill 3", "lost")]),
            result(control="twice", verdict="silent"),
            result(verdict="skipped"),
        )
        assert reports.last_line(whole) == (
            "1 of 3 campaigns held, 1 violations, 1 of 2 controls fired, 1 skipped; long tier, seed 7, 90 s"
        )


class TestTheTables:
    def test_say_what_did_not_hold(self) -> None:
        whole = report(
            result(verdict="stuck", counts={"kills": 5, "acknowledged": 70}),
            result(control="early", verdict="fired", violations=[Shown("I1", "kill 3", "lost")]),
            result(control="twice", verdict="silent"),
        )
        text = reports.as_markdown(whole, [CAMPAIGN])
        row = "| a writer is killed (F09) | nothing is lost (I1) | `kills` | **stuck**; 5 kills; no violations |"
        assert f"{row} 1 of 2; **not twice** |" in text

    def test_say_what_was_run_again_and_with_which_seed(self) -> None:
        early = result(control="early", verdict="fired")
        whole = report(
            result(verdict="violated", counts={"kills": 5}), early, result(control="twice", verdict="silent")
        )
        again = report(result(seed=8, counts={"kills": 6}), result(seed=8, control="twice", verdict="fired"))
        text = reports.as_markdown(with_results_of(again, whole), [CAMPAIGN])
        assert "| `kills` | 6 kills; no violations | 2 of 2 |" in text
        told = "Of a later run, behind a change, are the figures of `kills` (seed 8)."
        assert text.endswith(f"SQLite s.\n{told}\n")
        assert "a later run" not in reports.as_markdown(whole, [CAMPAIGN])

    def test_have_as_many_cells_in_each_row_as_in_the_head(self) -> None:
        text = reports.as_markdown(load(PUBLISHED), [catalogue.find(name) for name in catalogue.NAMES])
        assert len({line.count("|") for line in text.partition("\n\n")[0].splitlines()}) == 1

    def test_of_the_published_run_are_in_the_readme_as_they_are_printed(self) -> None:
        printed = reports.as_markdown(load(PUBLISHED), [catalogue.find(name) for name in catalogue.NAMES])
        assert printed in (ROOT / "README.md").read_text(encoding="utf-8")

    def test_are_of_a_run_of_everything_in_which_all_was_well(self) -> None:
        whole = load(PUBLISHED)
        campaigns = [catalogue.find(name) for name in catalogue.NAMES]
        assert {(each.campaign, each.control) for each in whole.results} == {
            *((campaign.name, None) for campaign in campaigns),
            *((campaign.name, control.name) for campaign in campaigns for control in campaign.controls),
        }
        assert {each.verdict for each in whole.results} == {"held", "fired"}
        assert {whole.tier, *(each.tier for each in whole.results)} == {"long"}

    def test_name_no_place(self) -> None:
        assert not re.search(r"(?<![\w.])/(tmp|work|root|home)/", PUBLISHED.read_text(encoding="utf-8"))


def test_what_is_published_says_nothing_of_the_machine_that_a_violation_was_seen_on() -> None:
    whole = report(result(control="early", verdict="fired", violations=[Shown("I1", "kill 3", "lost in /tmp/x")]))
    (published,) = without_details(whole).results
    assert published.violations == [Shown("I1", "kill 3", "")]


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = report(result(counts={"kills": 3}, violations=[Shown("I1", "kill 3", "lost")]))
    save(whole, tmp_path / "report.json")
    assert load(tmp_path / "report.json") == whole
    with pytest.raises(msgspec.ValidationError):
        (tmp_path / "report.json").write_text("[]")
        load(tmp_path / "report.json")


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_a_campaign_says_what_it_does_in_words_for_a_table(name: str) -> None:
    campaign = catalogue.find(name)
    assert campaign.name == name
    for text in (campaign.title, campaign.promise, *(control.what for control in campaign.controls)):
        assert text and "|" not in text and "\n" not in text and not text.endswith(".")
    assert len(" ".join(reports.described([campaign]))) > 100
