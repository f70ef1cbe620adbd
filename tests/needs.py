"""What a test needs of the machine beyond Python.

A developer's machine may lack it: the test is skipped, with the reason in the summary. In continuous integration
(`CI=true`) a missing tool is a failure, so that a green run has left nothing out.
"""

from __future__ import annotations

import os
import shutil

import pytest

__all__ = ["need", "need_command"]


def need_command(name: str) -> str:
    """Return the path of a command that the running test needs; skip the test, or in CI fail it, if there is none."""
    path = shutil.which(name)
    need(path is not None, f"the command {name}")
    assert path is not None
    return path


def need(is_there: bool, what: str) -> None:
    """Skip the running test, or in CI fail it, unless what it needs is there."""
    if is_there:
        return
    reason = f"this machine lacks {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
