"""The tools that measure the tests: each kind of mutant, what is left alone, and what is read of a coverage run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

from tools import branches
from tools.mutation import program as mutation
from tools.mutation.equivalents import EQUIVALENT
from tools.mutation.mutants import mutants_of
from tools.mutation.mutated_code import ROOT, function_of, swapped_codes


def changes(source: str) -> set[tuple[str, str]]:
    """Return the lines that become others, by operator."""
    return {(mutant.operator, mutant.lines(source)[1]) for mutant in mutants_of("m.py", source)}


@pytest.mark.parametrize(
    ("source", "operator", "changed"),
    [
        ("x = a < b\n", "compare", "x = (a <= b)"),
        ("x = a is None\n", "compare", "x = (a is not None)"),
        ("x = a and b\n", "boolean", "x = (a or b)"),
        ("x = not a\n", "boolean", "x = (a)"),
        ("x = a + b\n", "arithmetic", "x = (a - b)"),
        ("x = 7\n", "constant", "x = 8"),
        ("x = True\n", "constant", "x = False"),
        ("x = 'a_code'\n", "constant", "x = 'a_codeX'"),
        ("if a:\n    b()\n", "condition", "if (not a):"),
        ("x = [a for a in b if a]\n", "condition", "x = [a for a in b if (not a)]"),
        ("b()\n", "statement", "pass"),
        ("raise A\n", "statement", "pass"),
        ("def f():\n    return a\n", "result", "return None"),
        ("x = f(a, b)\n", "arguments", "x = f(b, a)"),
        ("x = f(a, b=c)\n", "arguments", "x = f(a)"),
        ("match a:\n    case B():\n        c()\n", "case", "case 'nothing is equal to this':"),
        ("match a:\n    case B() if c:\n        d()\n", "case", "case B() if False:"),
        ("ä = 'ö'; x = 'wörter'; y = a < b\n", "compare", "ä = 'ö'; x = 'wörter'; y = (a <= b)"),
    ],
)
def test_each_kind_of_mistake_is_made(source: str, operator: str, changed: str) -> None:
    assert (operator, changed) in changes(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""\n',
        "x: int | None\n",
        "x = 'words for people'\n",
        "x = f'{a}b'\n",
        "__all__ = ['a']\n",
        "x = str | None\n",
        "assert_never(a)\n",
        "if TYPE_CHECKING:\n    import a\n",
        "@d(1)\nclass A:\n    pass\n",
    ],
)
def test_what_nobody_promises_is_left_alone(source: str) -> None:
    assert changes(source) <= {("condition", "if (not TYPE_CHECKING):")}


@pytest.mark.parametrize("module", mutation.modules_of(mutation.TESTS))
def test_every_mutant_of_what_is_measured_can_be_compiled(module: str) -> None:
    source = (ROOT / module).read_text(encoding="utf-8")
    for mutant in mutants_of(module, source):
        compile(mutant.applied(source), module, "exec", dont_inherit=True)


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    one = mutation.chosen_mutants(["eventlog/run.py"], 10, 7)
    assert one == mutation.chosen_mutants(["eventlog/run.py"], 10, 7)
    assert len(one) == 10
    assert one != mutation.chosen_mutants(["eventlog/run.py"], 10, 8)


def test_a_mutant_that_is_known_to_be_equivalent_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source = (ROOT / "eventlog/run.py").read_text(encoding="utf-8")
    all_of_them = mutation.chosen_mutants(["eventlog/run.py"], None, 1)
    known = ("eventlog/run.py", *all_of_them[0].lines(source))
    monkeypatch.setitem(EQUIVALENT, known, "for a test")
    assert all_of_them[0] not in mutation.chosen_mutants(["eventlog/run.py"], None, 1)


def test_every_equivalent_mutant_exists_and_has_its_reason() -> None:
    for (module, before, after), reason in EQUIVALENT.items():
        source = (ROOT / module).read_text(encoding="utf-8")
        assert (before, after) in {mutant.lines(source) for mutant in mutants_of(module, source)}, before
        assert reason


def test_the_function_of_a_mutant_is_the_outermost_in_whose_body_it_stands() -> None:
    mutants = mutation.chosen_mutants(["eventlog/entry.py", "eventlog/codec/declarations.py"], None, 1)
    names = {(mutant.module, function_of(mutant)) for mutant in mutants}
    assert {("eventlog/entry.py", "parse"), ("eventlog/entry.py", None)} <= names
    assert {name for module, name in names if module.endswith("declarations.py")} == {"event", "split", "retire", None}


def test_a_mutant_changes_the_code_of_its_function_and_of_no_other() -> None:
    module = "eventlog/entry.py"
    original = compile((ROOT / module).read_text(encoding="utf-8"), str(ROOT / module), "exec", dont_inherit=True)
    codes = {(code.co_qualname, code.co_firstlineno): code for code in original.co_consts if isinstance(code, CodeType)}
    mutants = [mutant for mutant in mutation.chosen_mutants([module], None, 1) if function_of(mutant) == "leaf_hash"]
    assert mutants
    for mutant in mutants:
        swapped = swapped_codes(mutant)
        others = {name for (name, line), code in codes.items() if swapped[name, line].co_code != code.co_code}
        changed = {name for (name, line), code in codes.items() if swapped[name, line].co_consts != code.co_consts}
        assert others | changed <= {"leaf_hash"}


def test_every_test_module_that_is_named_is_there() -> None:
    assert branches.files_of(branches.TESTS)
    for tests in mutation.TESTS.values():
        branches.files_of(tests)
    with pytest.raises(SystemExit, match=r"tests/test_of_nothing\.py"):
        branches.files_of(["test_of_nothing"])


def test_what_a_killed_process_left_of_its_measurement_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "measured.whole").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "measured.half").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"SQLite format 3\0")
    assert branches.readable(tmp_path) == [str(tmp_path / "measured.whole")]


def test_a_mistake_in_what_is_read_at_import_is_tried_as_one_in_a_function_is() -> None:
    """The label of an entry is in the published layout, which a test has to the letter."""
    program = """
from tools.mutation.mutants import mutants_of
from tools.mutation.mutated_code import source_of
from tools.mutation.trials import run_mutants

module = "eventlog/entry.py"
meant = [each for each in mutants_of(module, source_of(module)) if each.lines(source_of(module))[0].startswith("LABEL")]
tried = list(run_mutants(meant, ["tests/test_entry.py"], 1))
print([each.is_killed for each in tried])
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[True]"
