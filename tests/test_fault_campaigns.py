"""Every fault campaign holds at its fast counts, and each of its controls fires: `tools/faults.py --fast`, in parts.

What a campaign does and checks stands in its module below `tools/campaigns/`. A failure names the seed and the case.
"""

from __future__ import annotations

import random

import pytest

from tests.needs import need
from tools.campaigns import catalogue
from tools.campaigns.frame.campaign import Campaign
from tools.campaigns.frame.performing import Task, perform
from tools.campaigns.frame.reports import lines_of
from tools.campaigns.frame.results import Result

CAMPAIGNS = [catalogue.find(name) for name in catalogue.NAMES]
CONTROLS = [(campaign, control) for campaign in CAMPAIGNS for control in campaign.controls]

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(600)]


def performed(task: Task) -> Result:
    lacking = task.campaign.lacks()
    need(lacking is None, str(lacking))
    result = perform(task)
    print("\n".join(lines_of(result)))
    return result


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda campaign: campaign.name)
def test_no_invariant_is_violated_and_the_counts_are_reached(campaign: Campaign) -> None:
    result = performed(Task(campaign, None, "fast", random.SystemRandom().getrandbits(32)))
    assert result.verdict == "held", "\n".join(lines_of(result))


@pytest.mark.parametrize(
    ("campaign", "number"),
    [(campaign, number) for campaign in CAMPAIGNS for number in range(len(campaign.controls))],
    ids=[f"{campaign.name}-{control.name}" for campaign, control in CONTROLS],
)
def test_a_thing_that_is_broken_on_purpose_is_noticed(campaign: Campaign, number: int) -> None:
    result = performed(Task(campaign, campaign.controls[number], "fast", random.SystemRandom().getrandbits(32)))
    assert result.verdict == "fired", "\n".join(lines_of(result))


def test_every_campaign_has_a_control() -> None:
    assert [campaign.name for campaign in CAMPAIGNS if not campaign.controls] == []
