"""`tools/dev.py`: what a person with nothing but Python meets first."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import dev

SOURCE = Path(dev.__file__)


class Clone:
    """A project folder with a copy of dev.py and an environment whose Python is a shell script."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "tools").mkdir(parents=True)
        shutil.copy(SOURCE, root / "tools" / "dev.py")
        (root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")

    def give_environment(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put an environment in place that counts as up to date and runs `script` as its Python."""
        python = self.root / dev.ENVIRONMENT_PYTHON
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\n{script}\n', encoding="utf-8")
        python.chmod(0o755)
        with monkeypatch.context() as patch:
            patch.chdir(self.root)
            Path(dev.STAMP).write_text(dev.stamp(), encoding="utf-8")

    def run(self, *arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
        """Run dev.py from another folder, after the statements in `before`."""
        program = f"import runpy, sys; {before}\nrunpy.run_path({self.tool!r}, run_name='__main__')"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(command, cwd=self.root.parent, capture_output=True, text=True, timeout=60, check=False)

    @property
    def tool(self) -> str:
        return str(self.root / "tools" / "dev.py")


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path.resolve() / "a clone")


@pytest.fixture
def commands(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that dev would run, which instead do no more than put an interpreter into `.venv`."""
    ran: list[list[str]] = []

    def pretend(command: list[str], *, folder: str | None = None) -> None:
        ran.append(command)
        if command[1:3] == ["-m", "venv"]:
            (clone.root / dev.ENVIRONMENT / "bin").mkdir(parents=True, exist_ok=True)
            python = clone.root / dev.ENVIRONMENT_PYTHON
            python.unlink(missing_ok=True)
            python.symlink_to(sys.executable)

    monkeypatch.setattr(dev, "run", pretend)
    monkeypatch.chdir(clone.root)
    return ran


def test_an_old_python_can_parse_it() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 6))
    futures = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert not futures, "an old Python refuses a future that it does not know"


def test_an_old_python_is_not_asked_to_evaluate_new_annotations() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        annotations = [node.returns] if isinstance(node, ast.FunctionDef) else []
        annotations += [node.annotation] if isinstance(node, ast.arg | ast.AnnAssign) else []
        for annotation in filter(None, annotations):
            assert isinstance(annotation, ast.Name | ast.Attribute | ast.Constant), ast.unparse(annotation)


def test_it_needs_nothing_but_the_standard_library() -> None:
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or "."] if isinstance(node, ast.ImportFrom) else []
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_an_old_python_is_told_so_in_one_line(clone: Clone) -> None:
    answer = clone.run("test", before="sys.version_info = (3, 9, 18, 'final', 0)")
    assert answer.returncode == 1
    assert answer.stderr == ("dev.py: Python 3.11 or newer is needed; this is 3.9.18. Try: python3.11 tools/dev.py\n")


def test_a_missing_venv_is_explained_in_one_line_before_anything_runs(clone: Clone) -> None:
    answer = clone.run("setup", before="sys.modules['ensurepip'] = None")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "ensurepip; on Debian and Ubuntu: apt install python3-venv" in answer.stderr
    assert answer.stdout == f"$ cd '{clone.root}'\n"
    assert not (clone.root / dev.ENVIRONMENT).exists()


@pytest.mark.parametrize(("missing", "remedy"), dev.NEEDED_MODULES)
def test_each_missing_module_has_its_remedy(missing: str, remedy: str) -> None:
    with pytest.raises(dev.CannotStart, match=remedy):
        dev.refuse_incomplete_python(lambda name: None if name == missing else name)


def test_a_command_is_printed_before_it_runs_and_its_status_is_ours(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.give_environment('echo "ran: $*"; exit 7', monkeypatch)
    answer = clone.run("demo")
    assert answer.returncode == 7
    assert answer.stdout.splitlines() == [
        f"$ cd '{clone.root}'",
        "$ .venv/bin/python -m eventlog demo",
        "ran: -m eventlog demo",
    ]


def test_a_command_killed_by_a_signal_gives_the_status_a_shell_would_give(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.give_environment("kill -KILL $$", monkeypatch)
    assert clone.run("demo").returncode == 128 + signal.SIGKILL


def test_what_is_not_ours_goes_to_pytest_in_order(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.give_environment('for word in "$@"; do echo "[$word]"; done', monkeypatch)
    given = ("test", "-k", "one or two", "--long", "tests/test_log.py", "--core", "-x", "--co")
    answer = clone.run(*given, before="import os; os.sched_getaffinity = lambda _: {0, 1}")
    words = [line[1:-1] for line in answer.stdout.splitlines() if line.startswith("[")]
    ours = ["-m", "pytest", "-n", "2", "--long", "-m", "not campaign and not processes"]
    assert words == [*ours, "-k", "one or two", "tests/test_log.py", "-x", "--co"]


@pytest.mark.parametrize(("cores", "options"), [(1, []), (2, ["-n", "2"]), (64, ["-n", "8"])])
def test_the_tests_use_the_cores_that_are_there(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, cores: int, options: list[str]
) -> None:
    clone.give_environment("exit 1", monkeypatch)
    monkeypatch.chdir(clone.root)
    monkeypatch.setattr(dev, "cores", lambda: cores)
    assert dev.spread_over_cores(["-k", "one or two", "-x", "--durations=60"]) == options


@pytest.mark.parametrize("word", ["--pdb", "-s", "no:xdist", "tools/dev.py", "tools/dev.py::test_one", "tools"])
def test_a_debugger_output_as_it_comes_and_tests_named_by_their_file_get_one_process(
    clone: Clone, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    clone.give_environment("exit 1", monkeypatch)
    monkeypatch.chdir(clone.root)
    monkeypatch.setattr(dev, "cores", lambda: 2)
    assert dev.spread_over_cores(["-x", word]) == []


def test_without_xdist_the_tests_run_one_after_the_other(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.give_environment("exit 0", monkeypatch)
    lacks_it = '#!/bin/sh\n[ "$2" = "import xdist" ] && exit 1\nexit 0\n'
    (clone.root / dev.ENVIRONMENT_PYTHON).write_text(lacks_it, encoding="utf-8")
    monkeypatch.chdir(clone.root)
    monkeypatch.setattr(dev, "cores", lambda: 2)
    assert dev.spread_over_cores([]) == []
    assert dev.is_current(), "that is no reason to make the environment again"


def test_a_word_too_many_is_a_usage_error(clone: Clone) -> None:
    answer = clone.run("check", "--quickly")
    assert answer.returncode == 2
    assert "unrecognized arguments: --quickly" in answer.stderr


def test_every_check_runs_and_the_first_failure_gives_the_status(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.give_environment('[ "$3" = check ] && exit 3; [ "$2" = build ] && exit 4; exit 0', monkeypatch)
    answer = clone.run("check")
    assert answer.returncode == 3
    assert answer.stderr == "check: failed: ruff, wheel\n"
    assert [line.split()[3] for line in answer.stdout.splitlines()[1:]] == ["ruff", "ruff", "mypy", "build"]


def test_the_environment_is_made_once(commands: list[list[str]]) -> None:
    assert dev.ensure_environment()
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"]]
    assert not dev.ensure_environment()
    assert len(commands) == 2


def test_coverage_hands_its_words_on(commands: list[list[str]]) -> None:
    dev.coverage(*dev.parse(["coverage", "test_claims", "test_run"]))
    assert commands[-1] == [dev.ENVIRONMENT_PYTHON, str(Path("tools", "branches.py")), "test_claims", "test_run"]


def test_bench_installs_the_peers_once_and_hands_its_words_on(commands: list[list[str]]) -> None:
    chosen, rest = dev.parse(["bench", "--quick", "--json", "figures.json", "append-1", "size"])
    dev.bench(chosen, rest)
    assert [command[1:3] for command in commands[:3]] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert commands[2][-1] == ".[dev,bench]"
    assert commands[3][1:] == [
        str(Path("tools", "bench")),
        "--quick",
        "--json",
        str(Path("figures.json").absolute()),
        "append-1",
        "size",
    ]
    dev.bench(*dev.parse(["bench"]))
    assert commands[4:] == [[dev.ENVIRONMENT_PYTHON, str(Path("tools", "bench"))]]


def test_a_new_environment_lacks_the_peers_until_they_are_asked_for(commands: list[list[str]]) -> None:
    dev.bench(*dev.parse(["bench"]))
    Path("pyproject.toml").write_text("[project]\nname = 'other'\n", encoding="utf-8")
    dev.ensure_environment()
    before = len(commands)
    dev.bench(*dev.parse(["bench"]))
    assert [command[-1] for command in commands[before:]] == [".[dev,bench]", str(Path("tools", "bench"))]


def test_the_environment_is_made_again_when_pyproject_changes(commands: list[list[str]]) -> None:
    dev.ensure_environment()
    Path("pyproject.toml").write_text("[project]\nname = 'other'\n", encoding="utf-8")
    assert dev.ensure_environment()
    assert not dev.ensure_environment()


def test_the_environment_is_made_again_when_its_python_is_gone(commands: list[list[str]]) -> None:
    dev.ensure_environment()
    python = Path(dev.ENVIRONMENT_PYTHON)
    python.unlink()
    python.symlink_to("/nonexistent/python")
    assert dev.ensure_environment()


def test_the_environment_is_made_again_after_the_folder_has_moved(
    commands: list[list[str]], clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev.ensure_environment()
    moved = clone.root.rename(clone.root.with_name("moved"))
    monkeypatch.chdir(moved)
    assert not dev.is_current()


def test_an_interrupted_installation_leaves_no_stamp(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: list[str], *, folder: str | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(clone.root)
    monkeypatch.setattr(dev, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dev.ensure_environment()
    assert not Path(dev.STAMP).exists()


def test_ctrl_c_lets_the_command_finish_and_ends_with_130(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    clone.give_environment('trap "sleep 0.5; echo cleaned up; exit 1" INT; echo ready; sleep 10', monkeypatch)
    command = [sys.executable, clone.tool, "demo"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        pass
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to all of them
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("cleaned up\n", "\ndev.py: interrupted\n", 130)
