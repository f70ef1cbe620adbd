"""The house: what may import what, checked over the syntax tree of every file of the two packages.

Imports count wherever they stand: at the top, inside a function, under `TYPE_CHECKING`, or as a literal given to
`importlib.import_module`. The tables come first and are the rule; below them is the reading of files, then one checker
for each rule. Each rule has a negative control: a made-up file that breaks it and has to be reported.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("eventlog", "projections")

# ── The tables ───────────────────────────────────────────────────────────────────────────────────────────────────────

# What stands at the top level and is visible; nothing else.
HOUSE: Final = {"pyproject.toml", "README.md", "eventlog", "projections", "tests", "tools"}

# The packages' own front doors: they hand names on lazily, and may therefore name everything.
FRONT_DOOR: Final = "eventlog"
FRONT_DOORS: Final = {FRONT_DOOR, "eventlog.__main__"}
MAY_USE_FRONT_DOOR: Final = {"cli", "inbox"}

# Which place may import which. A place is a file or folder of eventlog/, or projections/ as a whole; each may import
# itself. `projections` is imported by whoever wires things together, and by nobody else.
WORDS: Final = {"errors", "ids", "plain", "text", "times", "values", "events", "entry", "proposal", "codec", "log"}
HASHED: Final = {"merkle", "heads", "sealed", "remainders", "scanning", "signing"}  # what is proved, and to whom
PURE: Final = WORDS | HASHED | {"run", "views", "progress", "snapshots", "decide", "sentences"}
ENGINE: Final = PURE | {"stores", "runtime", "audit"}
MAY_IMPORT: Final[Mapping[str, set[str]]] = {
    "errors": set(),
    "ids": {"errors"},
    "plain": {"errors"},
    "text": set(),
    "times": {"errors"},
    "values": {"errors", "plain"},
    "events": {"errors"},
    "entry": WORDS,
    "proposal": WORDS,
    "codec": WORDS,
    "log": WORDS | {"merkle", "heads", "scanning"},
    "merkle": set(),
    "heads": {"errors", "merkle"},
    "sealed": {"entry"},
    "remainders": WORDS,
    "scanning": set(),
    "signing": WORDS | {"merkle", "heads", "run"},
    "run": WORDS,
    "views": WORDS,
    "progress": WORDS | {"run"},
    "snapshots": WORDS | {"run", "progress"},
    "decide": WORDS | {"run", "signing"},
    "sentences": WORDS,
    "stores": PURE,
    "runtime": PURE | {"stores"},
    "audit": PURE | {"stores"},
    "projections": {
        "codec",
        "errors",
        "events",
        "heads",
        "log",
        "merkle",
        "plain",
        "progress",
        "proposal",
        "run",
        "scanning",
        "sentences",
        "times",
        "views",
    },
    "testing": PURE | {"stores", "runtime"},
    "integrations": ENGINE,
    "inbox": ENGINE | {"integrations", "projections"},
    "cli": ENGINE | {"integrations", "projections", "inbox"},
}

# What single modules, or packages with all that is in them, may import beyond the row of their place.
MAY_IMPORT_ALSO: Final[Mapping[str, set[str]]] = {
    "projections.runner": {"eventlog.stores.telemetry"},
    "projections.sqlite_views": {"eventlog.stores.sqlite"},  # tables between the appends of the log's own database
}

# Files in eventlog/ do no IO: these they do not import, and these they do not call.
# fmt: off
IO_MODULES: Final = {
    "aiosqlite", "asyncio", "click", "fcntl", "glob", "io", "logging", "mmap", "multiprocessing", "os", "pathlib",
    "random", "rich", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "structlog", "subprocess",
    "tempfile", "threading", "time", "urllib",
}
# fmt: on
IO_CALLS: Final = {"breakpoint", "input", "open", "print"}
# Packages that were one such file once, or make texts for people, and keep its rule.
PURE_PACKAGES: Final = (
    "eventlog/audit/diagrams/",
    "eventlog/audit/report/",
    "eventlog/codec/",
    "eventlog/decide/",
    "eventlog/progress/",
    "eventlog/sentences/",
    "eventlog/signing/",
)
# The one exception: ids are made from the clock and the entropy pool, in a file that does nothing else.
IO_ALLOWED: Final[Mapping[str, set[str]]] = {"eventlog.ids": {"os", "time"}}

# Drivers and libraries: where each may be imported (a module, or a package with all that is in it); None is everywhere.
# A third-party module without a line here may not be imported at all.
SQLITE: Final = {"eventlog.stores.sqlite", "eventlog.runtime.actions.row", "projections.sqlite_views"}
DRIVERS: Final[Mapping[str, set[str] | None]] = {
    "aiosqlite": SQLITE,
    "sqlite3": SQLITE,
    "rfc8785": {"eventlog.proposal"},
    "click": {"eventlog.cli"},
    "cryptography": {"eventlog.audit.pack.verifier", "eventlog.signing.ed25519", "eventlog.stores.subject_keys"},
    "pyarrow": {"eventlog.audit.export.parquet"},
    "httpx": {"eventlog.runtime.actions.http_request.action"},
    "rich": {"eventlog.cli"},
    "structlog": {"eventlog.stores", "eventlog.runtime", "eventlog.cli"},
    "annotationlib": None,  # of the standard library, from Python 3.14 on
    "msgspec": None,
    "pytest": {"eventlog.testing"},
}

# The wall clock and chance: passed in, never reached for, except where they are made, and in what is no engine.
AMBIENT: Final = {
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "os.getrandom",
    "os.urandom",
    "time.time",
    "time.time_ns",
    "uuid.uuid1",
    "uuid.uuid4",
}
AMBIENT_MODULES: Final = {"random", "secrets"}
NOT_AMBIENT: Final = {"random.Random"}  # the type of a generator that is passed in
AMBIENT_ALLOWED: Final = {
    "eventlog.ids",
    "eventlog.stores.clock",
    "eventlog.stores.entropy",
    "eventlog.cli",
    "eventlog.testing",
}

# ── Reading files ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Import:
    """One imported thing: `from a.b import c` names `a.b.c`, which may be a module or a name in the module `a.b`."""

    name: str
    line: int

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the two packages, read."""

    name: str
    path: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def place(self) -> str:
        """The name of the row in the table of allowed imports."""
        return place_of(self.name)

    @property
    def is_top_level_file(self) -> bool:
        """Whether it lies directly in eventlog/ and is no front door, or in a package that stands for such a file."""
        if self.path.startswith(PURE_PACKAGES):
            return True
        return self.path.count("/") == 1 and self.path.startswith("eventlog/") and self.name not in FRONT_DOORS


Sources = Mapping[str, str]  # the text of a file by its path from the root


def read_house() -> dict[str, str]:
    """Return the text of every Python file of the two packages by its path from the root."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in files}


def parse(sources: Sources) -> list[Module]:
    """Return the sources as modules."""
    return [parse_one(path, text) for path, text in sources.items()]


def parse_one(path: str, text: str) -> Module:
    parts = path.removesuffix(".py").split("/")
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    package = name if is_package else name.rpartition(".")[0]
    tree = ast.parse(text, filename=path)
    return Module(name=name, path=path, tree=tree, imports=tuple(find_imports(tree, package)))


def find_imports(tree: ast.Module, package: str) -> Iterator[Import]:
    """Yield everything that is imported, wherever it stands, with relative imports made absolute."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, node.lineno) for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                origin = absolute(module, level, package)
                yield from (Import(f"{origin}.{alias.name}", node.lineno) for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(absolute(name.lstrip("."), len(name) - len(name.lstrip(".")), package), node.lineno)


def absolute(module: str | None, level: int, package: str) -> str:
    """Return the absolute name of a module named from inside `package` with `level` leading dots."""
    if level == 0:
        return module or ""
    parent = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join([*parent, module] if module else parent)


def place_of(name: str) -> str:
    """Return the place in the house that a dotted name belongs to; `eventlog` itself is a place without a row."""
    top, _, rest = name.partition(".")
    return rest.partition(".")[0] if top == "eventlog" and rest else top


def is_inside(name: str, places: set[str]) -> bool:
    """Return whether a module is one of these, or lies in one of these packages."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def is_ours(imported: Import) -> bool:
    return imported.top in PACKAGES


# ── One checker for each rule: from all modules to the lines that say what is wrong ──────────────────────────────────

Rule = Callable[[list[Module]], Iterator[str]]


def top_level_files_do_no_io(modules: list[Module]) -> Iterator[str]:
    for module in (module for module in modules if module.is_top_level_file):
        allowed = IO_ALLOWED.get(module.name, set())
        for imported in module.imports:
            if imported.top in IO_MODULES - allowed:
                yield f"{module.path}:{imported.line}: a top-level file does no IO, but imports {imported.top}"
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in IO_CALLS:
                    yield f"{module.path}:{node.lineno}: a top-level file does no IO, but calls {name}()"


def imports_point_inwards(modules: list[Module]) -> Iterator[str]:
    for module in (module for module in modules if module.name not in FRONT_DOORS):
        if module.place not in MAY_IMPORT:
            yield f"{module.path}:1: {module.place} has no row in the table of allowed imports"
            continue
        allowed = MAY_IMPORT[module.place] | {module.place}
        also = set().union(*(more for place, more in MAY_IMPORT_ALSO.items() if is_inside(module.name, {place})))
        ours = (each for each in module.imports if is_ours(each) and not is_inside(each.name, also))
        targets = {(imported.line, target_of(imported)) for imported in ours}
        for line, target in sorted(targets):
            if target == FRONT_DOOR and module.place not in MAY_USE_FRONT_DOOR:
                yield f"{module.path}:{line}: {module.place} may not import from the front door, eventlog"
            elif target != FRONT_DOOR and target not in allowed:
                yield f"{module.path}:{line}: {module.place} may not import {target}"


def target_of(imported: Import) -> str:
    """Return the place that is imported from; a name of eventlog that is no place was handed on by the front door."""
    place = place_of(imported.name)
    return place if place in MAY_IMPORT else FRONT_DOOR


def drivers_stay_in_their_places(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for imported in module.imports:
            if imported.top in DRIVERS:
                places = DRIVERS[imported.top]
                if places is not None and not is_inside(module.name, places):
                    yield f"{module.path}:{imported.line}: {imported.top} is imported only in {sorted(places)}"
            elif not is_ours(imported) and imported.top not in sys.stdlib_module_names:
                yield f"{module.path}:{imported.line}: {imported.top} has no row in the table of drivers"


def nothing_imports_in_a_circle(modules: list[Module]) -> Iterator[str]:
    paths = {module.name: module.path for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        targets = {target for imported in module.imports if (target := nearest_module(imported.name, set(paths)))}
        # A package may name what it hands on itself; a file that imports itself is a circle.
        graph[module.name] = targets - {module.name} if module.path.endswith("/__init__.py") else targets
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        yield f"{paths[circle[0]]}:1: imports in a circle: {' <- '.join(circle)}"


def nearest_module(name: str, names: set[str]) -> str | None:
    """Return the module that an imported name is or lies in, if it is one of ours."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name or None


def clock_and_chance_are_passed_in(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if not is_inside(module.name, {"eventlog"}) or is_inside(module.name, AMBIENT_ALLOWED):
            continue
        origins = origins_of_names(module.tree)
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute | ast.Name):
                continue
            name = full_name(node, origins)
            if is_ambient(name):
                yield f"{module.path}:{node.lineno}: {name} is passed in, not reached for"


def is_ambient(name: str) -> bool:
    """Return whether this is the wall clock or a source of chance."""
    module, _, attribute = name.partition(".")
    return name in AMBIENT or (bool(attribute) and module in AMBIENT_MODULES and name not in NOT_AMBIENT)


def origins_of_names(tree: ast.Module) -> dict[str, str]:
    """Return for each name that an import binds, anywhere in the file, what it stands for."""
    origins: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                # `import a.b` binds `a`; `import a.b as c` binds `c` to `a.b`.
                for alias in names:
                    top = alias.name.partition(".")[0]
                    origins[alias.asname or top] = alias.name if alias.asname else top
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                origins |= {alias.asname or alias.name: f"{origin}.{alias.name}" for alias in names}
    return origins


def full_name(node: ast.expr, origins: Mapping[str, str]) -> str:
    """Return the dotted name an expression stands for, or nothing if it is not the use of an imported name."""
    match node:
        case ast.Name(id=name):
            return origins.get(name, "")
        case ast.Attribute(value=value, attr=attribute):
            owner = full_name(value, origins)
            return f"{owner}.{attribute}" if owner else ""
        case _:
            return ""


RULES: Final[tuple[Rule, ...]] = (
    top_level_files_do_no_io,
    imports_point_inwards,
    drivers_stay_in_their_places,
    nothing_imports_in_a_circle,
    clock_and_chance_are_passed_in,
)


# ── The house as it stands ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule: Rule) -> None:
    found = list(rule(parse(read_house())))
    assert not found, "\n" + "\n".join(found)


def test_nothing_is_visible_at_the_top_but_the_house() -> None:
    assert {visible for name in files_in_git("--cached", "--others") if (visible := top_of(name))} <= HOUSE


def test_what_is_committed_is_the_whole_house() -> None:
    tracked = {visible for name in files_in_git("--cached") if (visible := top_of(name))}
    if not tracked:
        pytest.skip("nothing is committed yet")
    assert tracked == HOUSE


def files_in_git(*which: str) -> list[str]:
    """Return the paths that git knows, or would add; the test is skipped where there is no git repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git repository")
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--exclude-standard", *which]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split("\0")


def top_of(path: str) -> str:
    """Return the top-level entry of a path, or nothing if it is a dot-file."""
    top = path.partition("/")[0]
    return "" if top.startswith(".") else top


# ── Negative controls: each of these has to be reported by its rule, and is otherwise unremarkable ────────────────────

BROKEN: Final[tuple[tuple[Rule, str, str], ...]] = (
    (top_level_files_do_no_io, "eventlog/decide/effects.py", "import os.path"),
    (top_level_files_do_no_io, "eventlog/decide/__init__.py", "import asyncio"),
    (top_level_files_do_no_io, "eventlog/progress/fold.py", "import asyncio"),
    (top_level_files_do_no_io, "eventlog/run.py", "def now():\n    from time import monotonic"),
    (top_level_files_do_no_io, "eventlog/codec.py", "print('here')"),
    (top_level_files_do_no_io, "eventlog/log.py", "text = open('file').read()"),
    (top_level_files_do_no_io, "eventlog/entry.py", "if TYPE_CHECKING:\n    from pathlib import Path"),
    (top_level_files_do_no_io, "eventlog/new_file.py", "import asyncio"),
    (top_level_files_do_no_io, "eventlog/ids.py", "import socket"),
    (imports_point_inwards, "eventlog/errors.py", "from eventlog.events import RunStarted"),
    (imports_point_inwards, "eventlog/events.py", "from eventlog.log import NewEvent"),
    (imports_point_inwards, "eventlog/codec.py", "from .run import Run"),
    (imports_point_inwards, "eventlog/run.py", "from eventlog import decide"),
    (
        imports_point_inwards,
        "eventlog/decide/effects.py",
        "def late():\n    from eventlog.stores.memory import MemoryLog",
    ),
    (imports_point_inwards, "eventlog/stores/sqlite.py", "if TYPE_CHECKING:\n    from ..runtime.runner import Runner"),
    (imports_point_inwards, "eventlog/runtime/runner.py", "import projections.runs"),
    (imports_point_inwards, "eventlog/runtime/runner.py", "from eventlog.audit.verify import verify"),
    (imports_point_inwards, "eventlog/runtime/runner.py", "import_module('eventlog.cli')"),
    (imports_point_inwards, "eventlog/runtime/runner.py", "from eventlog.testing import clock"),
    (imports_point_inwards, "eventlog/runtime/runner.py", "from eventlog import open"),
    (imports_point_inwards, "eventlog/testing/contract.py", "from eventlog.cli import main"),
    (imports_point_inwards, "projections/runs.py", "from eventlog.stores.sqlite import SqliteLog"),
    (imports_point_inwards, "projections/runs.py", "from eventlog.entry import Entry"),
    (imports_point_inwards, "projections/runner.py", "from eventlog.stores.sqlite import SqliteLog"),
    (imports_point_inwards, "projections/sqlite_views/table.py", "from eventlog.stores.memory import MemoryLog"),
    (imports_point_inwards, "eventlog/helpers.py", ""),
    (drivers_stay_in_their_places, "eventlog/stores/memory.py", "import sqlite3"),
    (drivers_stay_in_their_places, "eventlog/stores/sqlite_old.py", "import aiosqlite"),
    (drivers_stay_in_their_places, "projections/runs.py", "import sqlite3"),
    (drivers_stay_in_their_places, "eventlog/codec.py", "import rfc8785"),
    (drivers_stay_in_their_places, "eventlog/runtime/runner.py", "from click import echo"),
    (drivers_stay_in_their_places, "eventlog/runtime/actions/http_request/answer.py", "def late():\n    import httpx"),
    (drivers_stay_in_their_places, "eventlog/inbox/page.py", "from rich.table import Table"),
    (drivers_stay_in_their_places, "eventlog/audit/verify.py", "import structlog"),
    (drivers_stay_in_their_places, "eventlog/stores/postgres.py", "import psycopg"),
    (nothing_imports_in_a_circle, "eventlog/run.py", "from eventlog.run import Run"),
    (clock_and_chance_are_passed_in, "eventlog/runtime/claims.py", "import time\nnow = time.time()"),
    (clock_and_chance_are_passed_in, "eventlog/stores/memory.py", "from time import time_ns as now\nat = now()"),
    (clock_and_chance_are_passed_in, "eventlog/log.py", "import uuid\ndef new(make=uuid.uuid4): ..."),
    (clock_and_chance_are_passed_in, "eventlog/runtime/retry.py", "import random\nwait = random.random()"),
    (clock_and_chance_are_passed_in, "eventlog/audit/sign.py", "from os import urandom\nsalt = urandom(16)"),
    (
        clock_and_chance_are_passed_in,
        "eventlog/audit/sign.py",
        "from secrets import token_bytes\nsalt = token_bytes(16)",
    ),
    (clock_and_chance_are_passed_in, "eventlog/runtime/x.py", "from datetime import datetime\nat = datetime.now(None)"),
    (clock_and_chance_are_passed_in, "eventlog/runtime/x.py", "import datetime as d\nat = d.datetime.now(d.UTC)"),
)


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN, ids=[f"{rule.__name__}-{path}" for rule, path, _ in BROKEN])
def test_a_file_that_breaks_the_rule_is_reported_once(rule: Rule, path: str, text: str) -> None:
    found = list(rule(parse({path: text})))
    assert len(found) == 1
    assert found[0].startswith(f"{path}:")


def test_a_circle_of_several_files_is_reported() -> None:
    circle = {
        "eventlog/stores/__init__.py": "from eventlog.stores.sqlite import open_log",
        "eventlog/stores/sqlite.py": "def late():\n    from eventlog.stores.writer import Writer",
        "eventlog/stores/writer.py": "if TYPE_CHECKING:\n    from . import open_log",
    }
    assert len(list(nothing_imports_in_a_circle(parse(circle)))) == 1


def test_every_rule_has_a_negative_control() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(RULES)


KEPT: Final[Mapping[str, str]] = {
    "eventlog/__init__.py": "import os\nif TYPE_CHECKING:\n    from eventlog.stores.sqlite import open",
    "eventlog/__main__.py": "from eventlog.cli import main",
    "eventlog/ids.py": "import os, time\nat, salt = time.time_ns(), os.urandom(8)",
    "eventlog/proposal.py": "import rfc8785\nfrom eventlog.errors import InvalidInput",
    "eventlog/stores/__init__.py": "from eventlog.stores import sqlite",
    "eventlog/stores/sqlite/__init__.py": "from eventlog.stores.sqlite.writer import Writer",
    "eventlog/stores/sqlite/writer.py": "import time, aiosqlite\nfrom eventlog import log\nstart = time.monotonic()",
    "eventlog/log.py": "import msgspec\nfrom eventlog.events import Event\nreader.open()",
    "eventlog/events.py": "from .errors import Misuse",
    "eventlog/errors.py": "from collections.abc import Mapping",
    "eventlog/runtime/runner.py": "import random, structlog\nfrom eventlog.decide import resume\nr: random.Random",
    "eventlog/decide/effects.py": "from eventlog.run import Run",
    "eventlog/run.py": "from datetime import datetime\nat: datetime",
    "eventlog/testing/contract.py": "import time\nfrom eventlog.log import EventLog\nat = time.time()",
    "eventlog/cli/__init__.py": "import click, eventlog, time\nfrom projections.runs import Runs\nat = time.time()",
    "projections/sqlite_views.py": "import sqlite3\nfrom eventlog.log import EventReader",
    "projections/runs.py": "from projections.sqlite_views import View",
}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_house_that_keeps_the_rules_is_left_in_peace(rule: Rule) -> None:
    assert list(rule(parse(KEPT))) == []
