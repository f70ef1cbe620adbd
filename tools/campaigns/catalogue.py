"""All campaigns, those that take longest or need several cores first.

Each is imported when it is asked for: some need packages of theirs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from tools.campaigns.frame.campaign import Campaign

__all__ = ["NAMES", "find"]

NAMES: Final = (
    "power_cuts",
    "simulation",
    "races",
    "histories",
    "fuzz",
    "kills",
    "crash_pairs",
    "io_errors",
    "model",
    "take_overs",
    "syscall_kills",
    "bit_flips",
    "failpoints",
    "lifecycle",
    "load",
    "sharing",
    "disk_full",
    "clocks",
    "golden",
)


def find(name: str) -> Campaign:
    """Return the campaign of that name, one of `NAMES`."""
    campaign: Campaign = import_module(f"tools.campaigns.{name}").CAMPAIGN
    return campaign
