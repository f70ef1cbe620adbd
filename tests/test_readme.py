"""What the README shows, works: its blocks are run in an empty folder, and what it names exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import eventlog

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def environment() -> dict[str, str]:
    here = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(block, encoding="utf-8")
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_agent_block_is_short_and_writes_its_letter(tmp_path: Path) -> None:
    block = blocks("python")[0]
    assert len([line for line in block.splitlines() if line.strip()]) <= 15
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, env=environment(), timeout=60, check=True)
    assert (tmp_path / "letters" / "ada.txt").read_text(encoding="utf-8") == "Dear Ada, …"


@pytest.mark.parametrize("block", blocks("bash"))
def test_a_shell_block_runs(block: str, tmp_path: Path) -> None:
    script = f"set -eu\neventlog() {{ '{sys.executable}' -m eventlog \"$@\"; }}\n{block}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    assert '"result": "executed"' in done.stdout
    if "keys new" not in block:
        assert '"result": "already_completed"' in done.stdout


def test_what_the_block_on_proof_makes_is_accepted_by_the_verifier_alone(tmp_path: Path) -> None:
    (block,) = (block for block in blocks("bash") if "keys new" in block)
    script = f"set -eu\neventlog() {{ '{sys.executable}' -m eventlog \"$@\"; }}\n{block}"
    subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, timeout=60, check=True)
    verifier = ROOT / "eventlog" / "audit" / "pack" / "verifier.py"
    vkey = json.loads((tmp_path / "log-key.json").read_text(encoding="utf-8"))["verifier_key"]
    named = ["run-1.zip", "--log-key", vkey, "--approver", "ada=ada.pub", "--min-level", "2", "--head", "log.key.heads"]
    command = [sys.executable, "-I", str(verifier), *named]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED" in done.stdout


def test_the_request_that_is_shown_is_one_that_the_action_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = (block for block in blocks("text") if "HttpRequest(" in block)
    monkeypatch.setenv("TOKEN", "a secret")
    names: dict[str, Any] = {"eventlog": eventlog, "os": os}
    exec(block, names)
    proposal = names["proposal"]
    call = eventlog.Call(
        run_id="r", action=proposal.action, args=proposal.args, output=proposal.output, op_key="0" * 64, attempt=1
    )
    names["action"].check(call)
    with pytest.raises(eventlog.ActionFailed):
        names["action"].check(replace(call, output="https://elsewhere.example.com/v1/payments"))


def test_the_policies_that_are_shown_are_taken_and_say_what_the_text_says() -> None:
    (block,) = (block for block in blocks("text") if block.startswith("policies = {"))

    @eventlog.workflow
    async def fix_incident(run: eventlog.RunContext) -> None:
        """Stand for the one of the README."""

    async def perform(call: eventlog.Call) -> None:
        """Do nothing."""

    names: dict[str, Any] = {"eventlog": eventlog, "Policy": eventlog.Policy, "fix_incident": fix_incident}
    names |= {name: eventlog.action(name, promise="opaque")(perform) for name in ("apply_patch", "post_comment")}
    names["log"] = eventlog.open("memory:")
    exec(block, names)
    patch, comment = names["policies"]["apply_patch"], names["policies"]["post_comment"]
    terms = patch.terms(eventlog.propose("apply_patch", {}, "repo:main"), 0)
    assert terms.policy is not None and terms.policy.required == 2 and terms.policy.separation_of_duties
    assert terms.expires_at_us == 48 * 3600 * 1_000_000
    assert comment.terms(eventlog.propose("post_comment", {}, "draft:1"), 0).auto is not None
    assert comment.terms(eventlog.propose("post_comment", {}, "page:1"), 0).auto is None


def test_the_two_commands_are_named() -> None:
    for command in ("python3 tools/dev.py demo", "python3 tools/dev.py test"):
        assert f"\n{command}\n" in README


def test_every_file_that_is_named_exists() -> None:
    for name in re.findall(r"`((?:eventlog|projections|tests|tools)/[\w/.]+)`", README):
        assert (ROOT / name).exists(), name


def test_every_top_level_module_has_its_place_in_the_picture_of_the_house() -> None:
    house = README.split("## The house")[1].split("```")[1]
    modules = {path.stem for path in (ROOT / "eventlog").glob("*.py") if not path.stem.startswith("__")}
    folders = {path.name for path in (ROOT / "eventlog").iterdir() if path.is_dir() and not path.name.startswith("__")}
    missing = {name for name in modules | folders if not re.search(rf"\b{name}\b", house)}
    assert not missing
