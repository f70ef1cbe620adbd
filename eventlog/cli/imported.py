"""What the caller's own program has under a name, as `MODULE:NAME` on the command line gives it.

MODULE is imported as Python does it, the current folder first. What the program prints goes to standard error: standard
output belongs to the answer of the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from typing import Any, NamedTuple

from eventlog.errors import Misuse

__all__ = ["Imported", "printing_elsewhere"]


class Imported(NamedTuple):
    """One such argument: what was given, to which option, what its form is, and the code of what is wrong with it."""

    given: str
    option: str
    form: str
    code: str

    def found(self) -> Any:
        """Return what has the name. Raises Misuse with the code if there is nothing."""
        module_name, colon, name = self.given.partition(":")
        if not (module_name and colon and name):
            raise self.unusable(f"that is not {self.form}")
        return self._part(self._module(module_name), module_name, name)

    def loaded(self) -> Any:
        """Import the module, and return what has the name in it; without a name the module alone will do, and is it.

        For those who want what importing it does. Raises Misuse with the code.
        """
        return self.found() if ":" in self.given else self._module(self.given)

    def _module(self, module_name: str) -> Any:
        folder = os.getcwd()
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            return import_module(module_name)
        except (Exception, SystemExit) as error:
            raise self.unusable(f"cannot import {module_name!r}: {type(error).__name__}: {error}") from error

    def _part(self, found: Any, module_name: str, name: str) -> Any:
        for part in name.split("."):
            if not hasattr(found, part):
                raise self.unusable(f"{module_name!r} has no {name!r}")
            found = getattr(found, part)
        return found

    def unusable(self, why: str) -> Misuse:
        """Return the error that says why this cannot be used."""
        return Misuse(self.code, f"{self.option} {self.given!r}: {why}", **{self.option.lstrip("-"): self.given})


@contextmanager
def printing_elsewhere() -> Iterator[None]:
    """Send what the caller's own code prints to standard error."""
    with redirect_stdout(sys.stderr):
        yield
