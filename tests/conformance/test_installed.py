"""The outside suites are there to be run."""

from __future__ import annotations

from tests.conformance.suites import missing_packages
from tests.needs import need


def test_the_packages_of_the_outside_suites_are_installed() -> None:
    need(not missing_packages(), "the packages of the outside suites, which the extra `dev` installs")
