"""The verdict `artifacts`: every large value that an event names is kept beside the log, and is what its name says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventlog.audit.verify.findings import Finding, Problems, damage, raise_if_not_damage
from eventlog.errors import EventLogError, InvalidInput
from eventlog.log import ArtifactName, Artifacts

__all__ = ["ArtifactCheck"]

_REMEMBERED: Final = 10_000


class ArtifactCheck:
    """Checks the artifacts that events name, and remembers the last ones: several events may name the same."""

    def __init__(self, artifacts: Artifacts | None) -> None:
        self._artifacts: Final = artifacts
        self._problems: Final = Problems()
        self._sound: Final[set[str]] = set()
        self._is_known = True

    async def check(self, names: Sequence[ArtifactName]) -> None:
        """Read each artifact and compare it with its name."""
        if self._artifacts is None:
            self._is_known = self._is_known and not names
            return
        for name in names:
            if name.digest not in self._sound:
                await self._check(self._artifacts, name)

    async def _check(self, artifacts: Artifacts, name: ArtifactName) -> None:
        try:
            await artifacts.get(name.digest)
        except InvalidInput as error:
            self._found("artifact_missing", str(error), name)
        except EventLogError as error:
            raise_if_not_damage(error)
            self._found(damage(error).reason, str(error), name)
        else:
            if len(self._sound) >= _REMEMBERED:
                self._sound.clear()
            self._sound.add(name.digest)

    def _found(self, reason: str, message: str, name: ArtifactName) -> None:
        self._problems.add(reason, message, position=name.position, stream=name.stream)

    def finding(self) -> Finding:
        """Return the verdict."""
        return self._problems.finding() if self._is_known else Finding(verdict="unknown")
