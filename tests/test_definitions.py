"""Workflows: what may be one, what their fingerprint tells apart, and which runs may go on with changed code."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import linecache
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from eventlog.errors import InvalidInput
from eventlog.events import Definition
from eventlog.plain import parse_json
from eventlog.runtime.definitions import Workflow, mismatch, workflow

if TYPE_CHECKING:
    from nowhere import RunContext  # type: ignore[import-not-found]

Compile = Callable[[str], Any]
_numbers = itertools.count()


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compile:
    """Return what imports a text as a module of its own from a file, and gives what it calls `flow`."""

    def compile_text(text: str) -> Any:
        name = f"written_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module.flow

    return compile_text


@dataclass
class Order:
    id: str
    price: Decimal


@workflow
async def buy(run: RunContext, order: Order, *counts: int) -> Order:
    """Buy it."""
    return order


# ── the decorator ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_workflow_is_called_as_its_function_and_knows_what_it_is() -> None:
    order = Order("o", Decimal(1))
    assert await buy(None, order) is order
    assert isinstance(buy, Workflow)
    assert (buy.name, buy.__name__, buy.__doc__, buy.continues) == ("buy", "buy", "Buy it.", ())
    assert (buy.definition.workflow, buy.definition.version) == ("buy", None)
    assert len(bytes.fromhex(buy.definition.fingerprint)) == 32
    assert repr(buy) == f"<workflow 'buy' {buy.definition.fingerprint[:8]}>"


def test_the_decorator_takes_a_name_a_version_and_what_it_continues() -> None:
    @workflow(name="order.fix", version="2", continues=["1", "0a1b2c3d"])
    async def fix(run: Any) -> None: ...

    assert (fix.name, fix.definition.version, fix.continues) == ("order.fix", "2", ("1", "0a1b2c3d"))
    assert fix.definition.workflow == "order.fix"


def not_async(run: Any) -> None: ...
async def no_parameter() -> None: ...
async def only_keywords(*, run: Any) -> None: ...
async def only_many(*args: Any) -> None: ...
async def generator(run: Any) -> Any:
    yield run


class CallableObject:
    async def __call__(self, run: Any) -> None: ...


async def good(run: Any, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("function", "options", "what"),
    [
        (not_async, {}, "write `async def`"),
        (generator, {}, "write `async def`"),
        (functools.partial(good, 1), {"name": "good"}, "write `async def`"),
        (CallableObject(), {}, "a workflow is an async function"),
        (5, {}, "a workflow is an async function"),
        (no_parameter, {}, r"write `async def …\(run, …\)`"),
        (only_keywords, {}, r"write `async def …\(run, …\)`"),
        (only_many, {}, r"write `async def …\(run, …\)`"),
        (good, {"name": "a#b"}, "neither `#` nor `:`"),
        (good, {"name": "a:b"}, "neither `#` nor `:`"),
        (good, {"name": ""}, "blank"),
        (good, {"name": "x" * 200}, "bytes"),
        (good, {"version": " "}, "version of workflow 'good'"),
        (good, {"continues": "1"}, r"continues=\['1'\]"),
        (good, {"continues": [1]}, "must be a str"),
    ],
)
def test_what_can_be_no_workflow_is_refused_with_what_to_do(function: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        workflow(**options)(function)


# ── input and result ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_input_is_recorded_as_plain_json_and_comes_back_typed() -> None:
    args = (Order("o-1", Decimal("1.50")), 2, 3)
    data = buy.encode_input(args)
    assert parse_json(data) == [{"id": "o-1", "price": "1.50"}, 2, 3]
    assert buy.decode_input(data) == buy.decode_input(msgspec.Raw(data)) == args
    assert buy.result.decode(buy.result.encode(args[0])) == args[0]


@pytest.mark.parametrize(
    ("args", "code", "path"),
    [
        ((), "invalid_argument", "$"),
        ((Order("o", 1.5),), "unsupported_type", "$[0].price"),  # type: ignore[arg-type]
        ((Order("o", Decimal(1)), 1, "2"), "unsupported_type", "$[2]"),
        (({"id": "o"},), "unsupported_type", "$[0]"),
    ],
)
def test_input_that_does_not_fit_is_refused_with_the_number_of_the_argument(
    args: tuple[Any, ...], code: str, path: str
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        buy.encode_input(args)
    assert (refusal.value.code, refusal.value.path) == (code, path)
    assert str(refusal.value).count("(at ") == (path != "$")


@pytest.mark.parametrize(
    ("text", "path"), [(b"[]", "$"), (b'[{"id":"o"}]', "$[0]"), (b'[{"id":1,"price":"1"}]', "$[0].id")]
)
def test_recorded_input_that_the_function_does_not_take_today_is_refused(text: bytes, path: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        buy.decode_input(text)
    assert refusal.value.path == path


def test_an_annotation_may_name_a_class_that_is_defined_after_the_workflow(compiled: Compile) -> None:
    flow = compiled(
        """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from dataclasses import dataclass
        from eventlog.runtime.definitions import workflow

        if TYPE_CHECKING:
            from nowhere import RunContext

        @workflow
        async def flow(run: RunContext, order: Order) -> Order: ...

        @dataclass
        class Order:
            id: str
        """
    )
    (order,) = flow.decode_input(b'[{"id":"o"}]')
    assert type(order).__name__ == "Order"
    assert flow.result.is_typed


# ── fingerprints ──────────────────────────────────────────────────────────────────────────────────────────────────────

ORIGINAL = '''
from eventlog.runtime.definitions import workflow

@workflow
async def flow(run, incident: str) -> str:
    """Fix it."""
    logs = await run.step("search", search, f"{incident!r:>{10}}", {"a": 1})
    if logs:
        return "found"
    async def inner(x):
        "Inner."
        return x + 1
    return """two
        lines"""
'''
SAME = {
    "comments and blank lines": ORIGINAL.replace("    if logs:", "\n    # why\n\n    if logs:  # if any"),
    "another docstring": ORIGINAL.replace("Fix it.", "Mend it.\n\n    At length.\n    "),
    "no docstrings": ORIGINAL.replace('    """Fix it."""\n', "").replace('        "Inner."\n', ""),
    "formatting": ORIGINAL.replace('"search", search', "\n        'search',\n        search").replace(", {", ",{"),
    "line breaks and a comma": ORIGINAL.replace('{"a": 1})', '{\n"a": 1,\n},\n)').replace("x + 1", "(x+\n        1)"),
    "the decorator": ORIGINAL.replace("@workflow\n", '@workflow(\n    version="7",\n    continues=["6"],\n)\n'),
    "the function's own name": ORIGINAL.replace("@workflow", '@workflow(name="flow")').replace("def flow", "def other")
    + "\nflow = other\n",
    "what stands around it": "import json\n" + ORIGINAL + "\ndef search(): ...\n",
    "an indented definition": ORIGINAL.replace("\n@workflow", "\nif True:\n  @workflow")
    .replace("async def flow", "  async def flow")
    .replace("\n    ", "\n      ")
    .replace("\n          lines", "\n        lines"),
}
OTHER = {
    "a step name": ORIGINAL.replace('"search"', '"seek"'),
    "another step": ORIGINAL.replace("    if logs:", '    await run.step("more", search)\n    if logs:'),
    "a nested function": ORIGINAL.replace("x + 1", "x + 2"),
    "the block a line stands in": ORIGINAL.replace(
        '    async def inner(x):\n        "Inner."\n        return x + 1\n', ""
    ),
    "indentation": ORIGINAL.replace(
        '        return "found"\n    async def inner(x):\n        "Inner."\n        return x + 1\n',
        '        return "found"\n        async def inner(x):\n            "Inner."\n            return x + 1\n',
    ),
    "the format in an f-string": ORIGINAL.replace(":>{10}", ":<{10}"),
    "the space in a text": ORIGINAL.replace('"""two\n        lines"""', '"""two\n       lines"""'),
    "the type of a constant": ORIGINAL.replace('{"a": 1}', '{"a": 1.0}'),
    "a truth value for a number": ORIGINAL.replace('{"a": 1}', '{"a": True}'),
    "an operator": ORIGINAL.replace("x + 1", "x - 1"),
    "a default": ORIGINAL.replace("incident: str", 'incident: str = ""'),
    "an annotation": ORIGINAL.replace("-> str", "-> bytes"),
    "the name of the workflow": ORIGINAL.replace("@workflow", '@workflow(name="another")'),
}


@pytest.mark.parametrize("change", SAME)
def test_the_fingerprint_does_not_change_with(change: str, compiled: Compile) -> None:
    assert SAME[change] != ORIGINAL
    assert compiled(SAME[change]).definition.fingerprint == compiled(ORIGINAL).definition.fingerprint


@pytest.mark.parametrize("change", OTHER)
def test_the_fingerprint_changes_with(change: str, compiled: Compile) -> None:
    assert OTHER[change] != ORIGINAL
    assert compiled(OTHER[change]).definition.fingerprint != compiled(ORIGINAL).definition.fingerprint


def test_the_fingerprint_is_the_same_in_every_release(compiled: Compile) -> None:
    """These digits are in people's logs: a change of them breaks every run that is paused."""
    assert compiled(ORIGINAL).definition.fingerprint == (
        "dcc4c47b2b63da8ad47cfddb024a8e538e3147b3c3310810005ddddf011aeb95"
    )


def test_the_fingerprint_is_the_same_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "flows.py"
    path.write_text(ORIGINAL, encoding="utf-8")
    program = "import flows; print(flows.flow.definition.fingerprint)"
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent.parent}"}
    found = {
        subprocess.run(
            [sys.executable, *options, "-c", program], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for options in ([], ["-O"], ["-OO"], ["-B"])
    }
    assert len(found) == 1


def test_a_text_that_python_warns_about_has_its_fingerprint_all_the_same(compiled: Compile) -> None:
    text = ORIGINAL.replace('"found"', '"\\d"')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        flow = compiled(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = Workflow(flow.function)
    assert again.definition == flow.definition
    assert flow.definition.steps == ("search",)


def made(text: str) -> Workflow:
    """Return the workflow of a text without a file: nothing can read its source."""
    scope: dict[str, Any] = {}
    exec(textwrap.dedent(text), scope)
    return Workflow(scope["flow"])


def test_without_source_text_names_and_constants_are_taken() -> None:
    base = """
    async def flow(run):
        "Doc."
        def inner():
            return 5 in {"b", "a"}
        return await run.step("a")
    """
    flow = made(base)
    assert flow.definition.steps == ()
    assert made(base).definition == flow.definition
    assert made(base.replace("Doc.", "Another.")).definition == flow.definition
    assert made(base.replace('"a")', '"b")')).definition != flow.definition
    assert made(base.replace("step", "act")).definition != flow.definition
    assert made(base.replace("5", "6")).definition != flow.definition
    assert made(base.replace('"b", ', '"c", ')).definition != flow.definition


def test_a_decorator_that_wraps_the_function_leaves_it_its_fingerprint(compiled: Compile) -> None:
    wrapped = ORIGINAL.replace("@workflow\n", "@workflow\n@logged\n").replace(
        "\n@workflow",
        """
import functools
def logged(function):
    @functools.wraps(function)
    async def wrapper(*args):
        return await function(*args)
    return wrapper

@workflow""",
        1,
    )
    assert compiled(wrapped).definition == compiled(ORIGINAL).definition


# ── names of steps ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_names_that_are_spelled_out_are_found_in_order_whatever_the_context_is_called(compiled: Compile) -> None:
    flow = compiled(
        """
        from eventlog.runtime.definitions import workflow

        @workflow
        async def flow(context, other, name):
            logs, patch = await context.gather(
                context.step("search_logs", search, key="k"),
                context.step(name="prepare_patch", fn=prepare),
            )
            async def ask():
                return await context.wait_for_signal("answer", timeout_s=5)
            await context.step(name, search)
            await context.step(f"{name}", search)
            await other.step("not_ours", search)
            await context.child(sub_flow, 1, key="x")
            await context.child(workflow=flows.nested, run_id="r")
            await context.act("apply_patch", {"patch": patch}, output="o")
            await context.step("search_logs", search)
            await context.sleep(5)
            return await context.hand_off(agent_b)
        """
    )
    assert flow.definition.steps == (
        "search_logs",
        "prepare_patch",
        "answer",
        "sub_flow",
        "nested",
        "apply_patch",
        "search_logs",
        "agent_b",
    )


def test_the_context_of_a_method_is_the_parameter_behind_self() -> None:
    class Agent:
        async def flow(self, run: Any) -> None:
            await run.step("a", print)

    assert Workflow(Agent().flow).definition.steps == ("a",)


# ── mismatch ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def changed(steps: tuple[str, ...], *, version: str | None = None, fingerprint: str = "ab" * 32) -> Definition:
    return Definition(workflow="buy", fingerprint=fingerprint, version=version, steps=steps)


def flow_with(*steps: str, version: str | None = None, continues: tuple[str, ...] = ()) -> Workflow:
    """Return a workflow that spells out these steps."""
    found = Workflow(buy.function, name="buy", version=version, continues=continues)
    found.definition = msgspec.structs.replace(found.definition, steps=steps)  # type: ignore[misc]
    return found


def test_the_same_code_may_go_on_whatever_its_version_is_called() -> None:
    assert mismatch(buy.definition, Workflow(buy.function, version="9")) is None


@pytest.mark.parametrize("continues", ["1", "ab" * 32, "abababab", "ab" * 10])
def test_code_that_continues_a_version_or_a_fingerprint_may_go_on(continues: str) -> None:
    recorded = changed(("a",), version="1")
    assert mismatch(recorded, flow_with("b", continues=("0", continues))) is None


@pytest.mark.parametrize("continues", ["2", "ababab", "ABABABAB", "", "ab" * 31 + "cc", "babababa"])
def test_code_that_continues_something_else_may_not_go_on(continues: str) -> None:
    recorded = changed(("a",), version="1")
    assert mismatch(recorded, flow_with("a", continues=(continues,) if continues else ())) is not None


def test_code_without_a_version_is_not_continued_by_what_names_none() -> None:
    assert mismatch(changed(("a",)), flow_with("a", continues=("None",))) is not None


def test_another_workflow_may_not_go_on_even_with_the_same_code() -> None:
    said = mismatch(buy.definition, Workflow(buy.function, name="sell", continues=(buy.definition.fingerprint,)))
    assert said == "the run follows the workflow 'buy', not 'sell'"


def test_the_difference_is_told_in_step_names_with_both_versions_and_what_to_write() -> None:
    said = mismatch(changed(("a", "b", "a"), version="1"), flow_with("a", "c", version="2"))
    assert said is not None
    assert "it adds 'c' and it lacks 'b', 'a#2'" in said
    assert "began with version '1' (code abababababab), this is version '2' (code " in said
    assert 'write continues=["1"] in @workflow' in said


def test_without_a_new_version_the_fingerprint_is_what_to_write() -> None:
    for version in ("1", None):
        said = mismatch(changed(("a",), version=version), flow_with("a", version=version))
        assert said is not None
        assert "the same step names, other code" in said
        assert 'write continues=["abababababab"]' in said
        assert mismatch(changed(("a",), version=version), flow_with("a", continues=("abababababab",))) is None


def test_the_same_names_in_another_order_are_told() -> None:
    said = mismatch(changed(("a", "b")), flow_with("b", "a"))
    assert said is not None and "the same step names in another order, a, b before and b, a now" in said


def test_the_text_of_another_function_in_a_file_that_has_changed_is_not_taken_for_the_workflows_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that runs while its file is edited: the lines of the code object hold something else by then."""
    source = "async def made(run):\n    return await run.step('a', print)\n"
    path = tmp_path / "edited_later.py"
    path.write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("edited_later")
    assert workflow(module.made).definition.steps == ("a",)
    path.write_text("async def other():\n    return 'not it'\n\n\n" + source, encoding="utf-8")
    linecache.checkcache()
    changed = workflow(module.made).definition
    assert changed.steps == ()  # without a text there are none to be read
    path.write_text(source, encoding="utf-8")
    linecache.checkcache()
    assert workflow(module.made).definition.fingerprint != changed.fingerprint
