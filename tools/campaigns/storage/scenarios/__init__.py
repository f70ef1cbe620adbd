"""What programs do with a log while the storage below them fails, by name, with the audit that belongs to each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.campaigns.storage.scenarios.appended import CREATION, GROWTH, MIGRATION, READING
from tools.campaigns.storage.scenarios.filling import FILLING
from tools.campaigns.storage.scenarios.kept import BACKUP, MIRROR, SIGNED, VIEWS
from tools.campaigns.storage.scenarios.removed import ERASURE, SUBJECT
from tools.campaigns.storage.scenarios.runs import ARTIFACTS, FILE_EFFECT, LARGE_EFFECT
from tools.campaigns.storage.scenarios.scenario import Scenario, Wrong

__all__ = ["FOR_SMALL_DISKS", "SCENARIOS", "Scenario", "Wrong"]

_ALL: Final = (
    CREATION,
    GROWTH,
    READING,
    MIGRATION,
    FILE_EFFECT,
    ARTIFACTS,
    SIGNED,
    BACKUP,
    VIEWS,
    MIRROR,
    ERASURE,
    SUBJECT,
)
SCENARIOS: Final[Mapping[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}
FOR_SMALL_DISKS: Final[Mapping[str, Scenario]] = {each.name: each for each in (FILLING, LARGE_EFFECT, *_ALL)}
"""With those that take much room, or all of it."""
