#!/usr/bin/env python3
"""Set up, demonstrate, test and check this project, on a machine with nothing but Python 3.11 or newer.

    python3 tools/dev.py setup                            make or renew .venv
    python3 tools/dev.py demo                             watch a run crash and recover
    python3 tools/dev.py test [--long] [--core] [...]     run the tests, on all cores; the rest is handed to pytest
    python3 tools/dev.py check                            lint, format, types; the wheel, built and used elsewhere
    python3 tools/dev.py coverage [MODULE...]             the branches of the core that no test reaches, if any
    python3 tools/dev.py bench [--quick] [--json FILE] [CASE...]    measure, beside the limits and the peers

Every command is printed before it runs, and the exit status is that of the command that failed. Works from any folder.

This file uses the standard library only, and syntax that an old Python can parse: annotations that it could not
evaluate are strings, so that it gets as far as the line that tells it that it is too old.
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Callable

ROOT = Path(__file__).resolve().parent.parent
OLDEST_PYTHON = (3, 11)
INTERRUPTED = 130

PACKAGES = ("eventlog", "projections")
CHECKED = (*PACKAGES, "tools", "tests")

MOST_WORKERS = 8
IN_ONE_PROCESS = {"--pdb", "--trace", "-s", "--capture=no", "no:xdist"}

PYTHON_IN_VENV = os.path.join("bin", "python")
ENVIRONMENT = ".venv"
ENVIRONMENT_PYTHON = os.path.join(ENVIRONMENT, PYTHON_IN_VENV)
STAMP = os.path.join(ENVIRONMENT, "made-by-dev.txt")
PEERS_STAMP = os.path.join(ENVIRONMENT, "peers-by-dev.txt")

NEEDED_MODULES = (
    ("venv", "on Debian and Ubuntu: apt install python3-venv"),
    ("ensurepip", "on Debian and Ubuntu: apt install python3-venv"),
    ("_sqlite3", "use a Python that was built with SQLite"),
)

WHEEL_PROBE = """
import importlib.metadata, pathlib, sys
import eventlog, projections
print("eventlog-engine", importlib.metadata.version("eventlog-engine"), "on Python", sys.version.split()[0])
for package in (eventlog, projections):
    folder = pathlib.Path(package.__path__[0]).resolve()
    print(package.__name__, "from", folder)
    assert folder.is_relative_to(pathlib.Path(sys.prefix).resolve()), "imported from outside the fresh environment"
    assert (folder / "py.typed").is_file(), "py.typed is missing from the wheel"
"""


class CommandFailed(Exception):
    """A command ended with a status other than 0, which becomes this program's own."""

    def __init__(self, status: int) -> None:
        super().__init__(f"exit status {status}")
        self.status = status


class CannotStart(Exception):
    """This machine lacks something; the message is the one line that says what, and how to get it."""


def main(arguments: "list[str] | None" = None) -> int:
    """Run one subcommand and return the exit status."""
    try:
        refuse_old_python(sys.version_info[:3])
        chosen, rest = parse(sys.argv[1:] if arguments is None else arguments)
        go_to_root()
        COMMANDS[chosen.command](chosen, rest)
    except CannotStart as reason:
        print(f"dev.py: {reason}", file=sys.stderr)
        return 1
    except CommandFailed as failure:
        return failure.status
    except KeyboardInterrupt:
        print("\ndev.py: interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def parse(arguments: "list[str]") -> "tuple[argparse.Namespace, list[str]]":
    """Return the parsed command line and, for `test` alone, what is left of it for pytest."""
    parser = argparse.ArgumentParser(prog="dev.py", description="Set up, demonstrate, test and check this project.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("setup", help="make .venv, or renew it if it is out of date")
    commands.add_parser("demo", help="a real run in real processes: approved, crashed, recovered")
    test = commands.add_parser("test", help="run the tests", usage="dev.py test [--long] [--core] [pytest arguments]")
    test.allow_abbrev = False  # `--co` is pytest's
    test.add_argument("--long", action="store_true", help="with the long counts, which take hours rather than minutes")
    test.add_argument("--core", action="store_true", help="without campaigns and tests that start many processes")
    commands.add_parser("check", help="ruff, mypy --strict, and the built wheel imported elsewhere")
    coverage = commands.add_parser("coverage", help="branches of the core that no test reaches")
    coverage.add_argument("modules", nargs="*", metavar="MODULE", help="test modules (default: its own)")
    bench = commands.add_parser("bench", help="measure, beside the limits and what a user might pick instead")
    bench.add_argument("--quick", action="store_true", help="three short rounds, for a first look")
    bench.add_argument("--long", action="store_true", help="with a history of 10 million events")
    bench.add_argument("--json", metavar="FILE", type=os.path.abspath, help="keep every figure of every round")
    bench.add_argument("cases", nargs="*", metavar="CASE", help="all of them by default")
    chosen, rest = parser.parse_known_args(arguments)
    if rest and chosen.command != "test":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return chosen, rest


def setup(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Make `.venv`, or say that it is as it should be."""
    if not ensure_environment():
        print(f"{ENVIRONMENT} is up to date")


def demo(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Run the demonstration that ships with the package."""
    ensure_environment()
    run([ENVIRONMENT_PYTHON, "-m", "eventlog", "demo"])


def test(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Run pytest with the options that were asked for, on all cores unless that would be in the way."""
    ensure_environment()
    options = [*spread_over_cores(rest), *pytest_arguments(long=chosen.long, core=chosen.core)]
    run([ENVIRONMENT_PYTHON, "-m", "pytest", *options, *rest])


def check(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Run every check, even after one has failed, and end with the status of the first that did."""
    ensure_environment()
    checks = (
        ("ruff", check_lint),
        ("format", check_format),
        ("types", check_types),
        ("wheel", check_wheel),
    )
    failures = []
    for name, one_check in checks:
        try:
            one_check()
        except CommandFailed as failure:
            failures.append((name, failure))
    if failures:
        print(f"check: failed: {', '.join(name for name, _ in failures)}", file=sys.stderr)
        raise failures[0][1]
    print("check: clean")


def coverage(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Measure the branch coverage of the core, and fail unless it is whole."""
    ensure_environment()
    run([ENVIRONMENT_PYTHON, os.path.join("tools", "branches.py"), *chosen.modules])


def bench(chosen: argparse.Namespace, rest: "list[str]") -> None:
    """Measure, with the peers installed."""
    ensure_environment()
    ensure_peers()
    run([ENVIRONMENT_PYTHON, os.path.join("tools", "bench"), *bench_arguments(chosen)])


COMMANDS = {"setup": setup, "demo": demo, "test": test, "check": check, "coverage": coverage, "bench": bench}


def pytest_arguments(*, long: bool, core: bool) -> "list[str]":
    """Return what `--long` and `--core` mean to pytest."""
    return (["--long"] if long else []) + (["-m", "not campaign and not processes"] if core else [])


def spread_over_cores(rest: "list[str]") -> "list[str]":
    """Return what makes pytest use the cores of this machine; nothing if it has one, or lacks pytest-xdist.

    Nothing either where somebody asks for a debugger, for the output as it comes, or for tests that are named by their
    file: then they run in one process, in order. Of two options `-n` the last counts, so `-n 0` always has it so.
    """
    workers = min(cores(), MOST_WORKERS)
    named = any(os.path.exists(word.partition("::")[0]) for word in rest if not word.startswith("-"))
    if workers < 2 or named or IN_ONE_PROCESS.intersection(rest) or not runs(ENVIRONMENT_PYTHON, "import xdist"):
        return []
    return ["-n", str(workers)]


def cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def bench_arguments(chosen: argparse.Namespace) -> "list[str]":
    """Return the words that the benchmark itself takes."""
    size = [f"--{name}" for name in ("quick", "long") if getattr(chosen, name)]
    return [*size, *(["--json", chosen.json] if chosen.json else []), *chosen.cases]


def check_lint() -> None:
    """Lint everything, as configured in pyproject.toml."""
    run([ENVIRONMENT_PYTHON, "-m", "ruff", "check", *CHECKED])


def check_format() -> None:
    """See that everything is as ruff would format it."""
    run([ENVIRONMENT_PYTHON, "-m", "ruff", "format", "--check", *CHECKED])


def check_types() -> None:
    """Check the types of the source and of the tests alike."""
    run([ENVIRONMENT_PYTHON, "-m", "mypy", "--strict", *CHECKED])


def check_wheel() -> None:
    """Build the wheel, install it into a fresh environment, and use it from another folder."""
    with tempfile.TemporaryDirectory(prefix="eventlog-wheel-") as made:
        folder = os.path.realpath(made)
        fresh, elsewhere = os.path.join(folder, "venv"), os.path.join(folder, "elsewhere")
        os.mkdir(elsewhere)
        run([ENVIRONMENT_PYTHON, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, "."])
        wheel = next(Path(folder).glob("*.whl"))
        refuse_strangers_in_wheel(wheel)
        run([ENVIRONMENT_PYTHON, "-m", "venv", fresh])
        run([os.path.join(fresh, PYTHON_IN_VENV), "-m", "pip", "install", "-qq", str(wheel)])
        run([os.path.join(fresh, PYTHON_IN_VENV), "-I", "-c", WHEEL_PROBE], folder=elsewhere)
        run([os.path.join(fresh, "bin", "eventlog"), "--help"], folder=elsewhere)


def refuse_strangers_in_wheel(wheel: Path) -> None:
    """Fail if the wheel holds anything beside the two packages and its own description."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    strangers = sorted(top for top in tops if top not in PACKAGES and not top.endswith(".dist-info"))
    if strangers:
        print(f"the wheel holds more than {' and '.join(PACKAGES)}: {', '.join(strangers)}", file=sys.stderr)
        raise CommandFailed(1)


def ensure_environment() -> bool:
    """Make `.venv` if it is missing, broken or out of date; return whether it had to be made.

    The stamp is written last, so an environment whose making was interrupted is made again.
    """
    if is_current():
        return False
    refuse_incomplete_python(importlib.util.find_spec)
    run([base_python(), "-m", "venv", "--clear", ENVIRONMENT])
    run([ENVIRONMENT_PYTHON, "-m", "pip", "install", "-qq", "--editable", ".[dev]"])
    Path(STAMP).write_text(stamp(), encoding="utf-8")
    return True


def ensure_peers() -> None:
    """Install what the engine is measured against, unless it is there; making `.venv` anew removes it."""
    if is_stamped(PEERS_STAMP):
        return
    run([ENVIRONMENT_PYTHON, "-m", "pip", "install", "-qq", "--editable", ".[dev,bench]"])
    Path(PEERS_STAMP).write_text(stamp(), encoding="utf-8")


def is_current() -> bool:
    """Return whether `.venv` was made from this pyproject.toml by this Python in this place, and still runs."""
    return is_stamped(STAMP) and runs(ENVIRONMENT_PYTHON)


def is_stamped(path: str) -> bool:
    """Return whether the last step of an installation was done, for this pyproject.toml, this Python and this place."""
    try:
        return Path(path).read_text(encoding="utf-8") == stamp()
    except OSError:
        return False


def stamp() -> str:
    """Return a line that changes whenever the environment has to be made again.

    The place counts because an environment, and an editable install in it, hold absolute paths.
    """
    digest = hashlib.sha256()
    for part in (Path("pyproject.toml").read_bytes(), sys.version.encode(), os.fsencode(Path.cwd())):
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest() + "\n"


def runs(python: str, program: str = "") -> bool:
    """Return whether this interpreter starts at all, as its base may have been removed, and gets through `program`."""
    try:
        return subprocess.run([python, "-c", program], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def base_python() -> str:
    """Return the interpreter that environments are made from, even if this one runs in an environment."""
    return getattr(sys, "_base_executable", None) or sys.executable


def refuse_old_python(version: "tuple[int, ...]") -> None:
    """Say in one line that this Python is too old."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        needed, found = ".".join(map(str, OLDEST_PYTHON)), ".".join(map(str, version[:3]))
        raise CannotStart(f"Python {needed} or newer is needed; this is {found}. Try: python{needed} tools/dev.py")


def refuse_incomplete_python(find: "Callable[[str], object]") -> None:
    """Say in one line which part of the standard library this Python lacks, and what to do about it."""
    for module, remedy in NEEDED_MODULES:
        if find(module) is None:
            raise CannotStart(f"this Python ({sys.executable}) comes without the module {module}; {remedy}")


def go_to_root() -> None:
    """Work in the project's root, whatever folder this was called from."""
    if Path.cwd() != ROOT:
        print(f"$ cd {shlex.quote(str(ROOT))}", flush=True)
        os.chdir(ROOT)


def run(command: "list[str]", *, folder: "str | None" = None) -> None:
    """Print the command, run it, and raise `CommandFailed` unless it ends with 0.

    On Ctrl-C the command, which the terminal has told as well, may finish its own clean-up first.
    """
    print(as_typed(command, folder=folder), flush=True)
    try:
        process = subprocess.Popen(command, cwd=folder, env=child_environment())
    except OSError as error:
        print(f"dev.py: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        raise CommandFailed(127) from error
    status = wait(process)
    if status:
        raise CommandFailed(status if status > 0 else 128 - status)


def wait(process: "subprocess.Popen[bytes]") -> int:
    """Return the status of a process once it has ended; if Ctrl-C was pressed meanwhile, raise that then."""
    pressed = None
    while process.returncode is None:
        try:
            process.wait()
        except KeyboardInterrupt as interrupt:
            pressed = interrupt
    if pressed is not None:
        raise pressed
    return process.returncode


def as_typed(command: "list[str]", *, folder: "str | None") -> str:
    """Return the line that a person would type; a script given as an argument is shown by its first line."""
    words = " ".join(shlex.quote(word) if "\n" not in word else "'...'" for word in command)
    return f"$ {words}" if folder is None else f"$ cd {shlex.quote(folder)} && {words}"


def child_environment() -> "dict[str, str]":
    """Return the environment for commands: ours, with pip quiet about its own version."""
    return {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


if __name__ == "__main__":
    sys.exit(main())
