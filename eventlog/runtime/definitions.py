"""What a workflow is: an async function under a name, with a fingerprint of its code.

    @eventlog.workflow
    async def fix_incident(run: RunContext, incident: str) -> str: ...

A run goes on by calling the function again and handing it what is in the log, so the function has to be the one that
the run began with. The fingerprint is how that is noticed. It is SHA-256 over the workflow's name and the syntax of
the function's source text: comments, docstrings, formatting, type comments, the function's own name and its decorators
do not matter, functions that are nested in it do, those that it calls do not (what they returned is in the log). The
spelling that is hashed is our own, below, so that it is the same under every version of Python that reads the text.

Where there is no source text (a function made by `exec`, a program shipped as `.pyc`), names and constants of the
compiled code are taken instead. That is another fingerprint: it knows no difference between `a + b` and `a - b`,
docstrings of nested functions count, and another version of Python may compile to another one.
"""

from __future__ import annotations

import ast
import inspect
import re
import warnings
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import sha256
from types import CodeType, FunctionType, MethodType
from typing import Any, Final, overload

import msgspec

from eventlog.errors import InvalidInput
from eventlog.events import Definition
from eventlog.plain import check_id
from eventlog.values import ValueCodec, check_arguments, codec_for, codec_of, parameters, signature_of

__all__ = ["Workflow", "fingerprint_of", "mismatch", "workflow"]

WorkflowFunction = Callable[..., Coroutine[Any, Any, Any]]

MAX_NAME_BYTES: Final = 128
_SHORT_FINGERPRINT: Final = re.compile(r"[0-9a-f]{8,64}")


# ── The workflow ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Workflow:
    """An async function that runs can follow. Made by `@workflow`; calling it calls the function, without any log.

    `continues` are the versions and fingerprints of earlier code whose runs may go on with this one.
    """

    def __init__(
        self,
        function: WorkflowFunction,
        *,
        name: str | None = None,
        version: str | None = None,
        continues: Iterable[str] = (),
    ) -> None:
        self.name: Final = _checked_name(_own_name(function) if name is None else name)
        self.function: Final = _checked_function(function, self.name)
        self.continues: Final = _checked_continues(continues, self.name)
        if version is not None:
            check_id(version, f"version of workflow {self.name!r}", max_bytes=MAX_NAME_BYTES)
        tree = _syntax_of(function)
        self.definition: Final = Definition(
            workflow=self.name,
            fingerprint=_fingerprint(self.name, function, tree),
            version=version,
            steps=() if tree is None else tuple(_spelled_steps(tree, is_method=isinstance(function, MethodType))),
        )
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", self.name)
        self.__wrapped__: Final = function

    async def __call__(self, context: Any, *args: Any) -> Any:
        """Call the function itself."""
        return await self.function(context, *args)

    def __repr__(self) -> str:
        version = "" if self.definition.version is None else f" version {self.definition.version!r}"
        return f"<workflow {self.name!r}{version} {self.definition.fingerprint[:8]}>"

    @cached_property
    def result(self) -> ValueCodec:
        """Writes and reads what the function returns. Made at its first use: the annotation may name a later class."""
        return codec_of(self.function)

    def encode_input(self, args: Sequence[Any]) -> bytes:
        """Return the arguments behind the context as a JSON list, exact or refused.

        Raises InvalidInput: `invalid_argument` if the function cannot be called with them; otherwise the path begins
        with the number of the argument, as `$[0].price`.
        """
        check_arguments(self.function, args)
        texts = []
        for index, (codec, value) in enumerate(zip(self._codecs(len(args)), args, strict=True)):
            try:
                texts.append(codec.encode(value))
            except InvalidInput as error:
                raise _of_argument(index, error) from None
        return b"[" + b",".join(texts) + b"]"

    def decode_input(self, data: bytes | msgspec.Raw) -> tuple[Any, ...]:
        """Return the arguments that a recorded JSON list spells, of the types that the function names today.

        Raises InvalidInput if they are none that the function takes today.
        """
        texts = msgspec.json.decode(data, type=list[msgspec.Raw])
        check_arguments(self.function, texts)
        args = []
        for index, (codec, text) in enumerate(zip(self._codecs(len(texts)), texts, strict=True)):
            try:
                args.append(codec.decode(text))
            except InvalidInput as error:
                raise _of_argument(index, error) from error
        return tuple(args)

    def _codecs(self, count: int) -> list[ValueCodec]:
        return [codec_for(annotation) for annotation in parameters(self.function, count)]


@overload
def workflow(function: WorkflowFunction, /) -> Workflow: ...


@overload
def workflow(
    *, name: str | None = None, version: str | None = None, continues: Iterable[str] = ()
) -> Callable[[WorkflowFunction], Workflow]: ...


def workflow(
    function: WorkflowFunction | None = None,
    /,
    *,
    name: str | None = None,
    version: str | None = None,
    continues: Iterable[str] = (),
) -> Workflow | Callable[[WorkflowFunction], Workflow]:
    """Make a workflow of an async function whose first parameter is the context of the run; usable bare.

    `name` is what runs know it by, the function's own name by default. A run whose code has changed under it is
    refused (`definition_mismatch`) unless `continues` names the `version` it began with, or its fingerprint, or the
    first 8 hex digits of that or more. To name one there is a promise: the code asks for everything that the old code
    had asked for, by the same names. Raises InvalidInput for what can be no workflow.
    """
    if function is not None:
        return Workflow(function)

    def decorate(function: WorkflowFunction) -> Workflow:
        return Workflow(function, name=name, version=version, continues=continues)

    return decorate


def _of_argument(index: int, error: InvalidInput) -> InvalidInput:
    message = str(error).removesuffix(f" (at {error.path})")
    return InvalidInput(error.code, message, path=f"$[{index}]{error.path.removeprefix('$')}")


def _own_name(function: Any) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput(
            "invalid_argument", f"a workflow is an async function, and {function!r:.80} is none; give one"
        )
    return name


def _checked_name(name: str) -> str:
    check_id(name, "name of a workflow", max_bytes=MAX_NAME_BYTES)
    if "#" in name or ":" in name:
        raise InvalidInput(
            "invalid_id",
            f"the name of a workflow holds neither `#` nor `:`, and {name!r} does; give another one by name=…",
        )
    return name


def _checked_function(function: Any, name: str) -> WorkflowFunction:
    if not isinstance(function, FunctionType | MethodType) or not inspect.iscoroutinefunction(function):
        raise InvalidInput("invalid_argument", f"the workflow {name!r} is no async function; write `async def`")
    first = next(iter(signature_of(function).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise InvalidInput(
            "invalid_argument",
            f"the workflow {name!r} has no first parameter for the context of its run; write `async def …(run, …)`",
        )
    for each in signature_of(function).parameters.values():
        if each.kind is each.VAR_KEYWORD or (each.kind is each.KEYWORD_ONLY and each.default is each.empty):
            message = f"the workflow {name!r} takes {each.name!r} by keyword; a run has positional arguments only"
            raise InvalidInput("invalid_argument", message)
    result: WorkflowFunction = function
    return result


def _checked_continues(continues: Iterable[str], name: str) -> tuple[str, ...]:
    if isinstance(continues, str) or not isinstance(continues, Iterable):
        raise InvalidInput(
            "invalid_argument", f"`continues` of workflow {name!r} is a list; write continues=[{continues!r:.80}]"
        )
    found = tuple(continues)
    for each in found:
        check_id(each, f"version that workflow {name!r} continues", max_bytes=MAX_NAME_BYTES)
    return found


# ── May this run go on with that code? ───────────────────────────────────────────────────────────────────────────────


def mismatch(recorded: Definition, current: Workflow) -> str | None:
    """Return None if a run that began with `recorded` may go on with `current`, or else why not and what to do.

    It may if the code is the same, or if `current` continues the recorded version or fingerprint.
    """
    now = current.definition
    if recorded.workflow != now.workflow:
        return f"the run follows the workflow {recorded.workflow!r}, not {now.workflow!r}"
    if recorded.fingerprint == now.fingerprint or _continues(current, recorded):
        return None
    offer = recorded.version if _tells(recorded, now) else recorded.fingerprint[:12]
    return (
        f"the code of workflow {recorded.workflow!r} has changed since the run began: {_difference(recorded, now)}. "
        f"The run began with {_called(recorded)}, this is {_called(now)}. If the code still asks for everything that "
        f'the run has done, by the same names, write continues=["{offer}"] in @workflow(…)'
    )


def _tells(recorded: Definition, now: Definition) -> bool:
    """Say whether the version alone tells the two apart."""
    return recorded.version is not None and recorded.version != now.version


def _continues(current: Workflow, recorded: Definition) -> bool:
    return any(
        each == recorded.version
        or (_SHORT_FINGERPRINT.fullmatch(each) is not None and recorded.fingerprint.startswith(each))
        for each in current.continues
    )


def fingerprint_of(function: Any) -> str | None:
    """Return the digest of a function's code, 64 hex digits, made as that of a workflow; None for what has no code."""
    plain = function.__func__ if isinstance(function, MethodType) else inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return None
    return _fingerprint(plain.__qualname__.rpartition(".")[2], plain, _syntax_of(plain))


def _difference(recorded: Definition, now: Definition) -> str:
    before, after = _keys(recorded.steps), _keys(now.steps)
    added = [key for key in after if key not in before]
    removed = [key for key in before if key not in after]
    if added or removed:
        found = [
            f"it {verb} {', '.join(map(repr, keys))}" for verb, keys in (("adds", added), ("lacks", removed)) if keys
        ]
        return " and ".join(found)
    if before != after:
        return f"the same step names in another order, {', '.join(before)} before and {', '.join(after)} now"
    return "the same step names, other code"


def _keys(steps: Iterable[str]) -> list[str]:
    """Return the names as step keys are made of them: from its second use on a name has a number."""
    seen: Counter[str] = Counter()
    keys = []
    for name in steps:
        seen[name] += 1
        keys.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return keys


def _called(definition: Definition) -> str:
    code = f"code {definition.fingerprint[:12]}"
    return f"{code} without a version" if definition.version is None else f"version {definition.version!r} ({code})"


# ── Fingerprints ─────────────────────────────────────────────────────────────────────────────────────────────────────

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _syntax_of(function: Any) -> _Function | None:
    """Return the syntax tree of a function's own definition, or None if there is no source text to be had."""
    try:
        text = inspect.getsource(function)
        # A definition inside something else is indented, and its texts of several lines are not to be touched.
        found = _parsed(f"if True:\n{text}" if text[:1].isspace() else text)
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(found, ast.If):
        found = found.body[0]
    return found if isinstance(found, _Function) and _is_text_of(found, inspect.unwrap(function)) else None


def _is_text_of(tree: _Function, function: Any) -> bool:
    """Say whether the text that was found is the function's: a file that has changed since has another in its place."""
    args = tree.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
    code: CodeType = function.__code__
    return (tree.name, tuple(each.arg for each in named)) == (code.co_name, code.co_varnames[: len(named)])


def _parsed(text: str) -> ast.stmt:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to warn about was said when the module was imported
        return ast.parse(text).body[0]


def _fingerprint(name: str, function: Any, tree: _Function | None) -> str:
    if tree is None:
        pieces = ["code", name, *_spelled_code(inspect.unwrap(function).__code__, function.__doc__)]
    else:
        pieces = ["source", name, type(tree).__name__, *_spelled(tree.args), *_spelled(tree.returns)]
        pieces += [*_spelled(getattr(tree, "type_params", [])), *_spelled(_body(tree))]
    return sha256("\0".join(pieces).encode()).hexdigest()


def _spelled(node: Any) -> Iterator[str]:
    """Yield the pieces that spell a part of a syntax tree.

    Fields that are empty are left out, because each version of Python adds some; so is what only says where the part
    stands, or is a docstring.
    """
    match node:
        case ast.AST():
            yield f"({type(node).__name__}"
            for name in node._fields:
                value = _part(node, name)
                if name not in ("ctx", "kind", "type_comment", "type_ignores") and value is not None and value != []:
                    yield f"{name}="
                    yield from _spelled_constant(value) if isinstance(node, ast.Constant) else _spelled(value)
            yield ")"
        case list():
            yield "["
            for each in node:
                yield from _spelled(each)
            yield "]"
        case _:
            yield _literal(node)


def _spelled_constant(value: Any) -> Iterator[str]:
    yield f"{type(value).__name__}:{_literal(value)}"


def _literal(value: Any) -> str:
    """Return a constant as text, the same under every version: which characters `repr` prints as they are changes."""
    return hex(value) if type(value) is int else ascii(value)


def _part(node: ast.AST, name: str) -> Any:
    """Return a field of a syntax tree, without what says nothing."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if name == "body":
            return _body(node)
        case ast.JoinedStr(values=values) if name == "values":
            # Python 3.12 has empty texts in formats, where others have nothing.
            return [each for each in values if not (isinstance(each, ast.Constant) and each.value == "")]
        case _:
            return getattr(node, name, None)


def _body(node: _Function | ast.ClassDef) -> list[ast.stmt]:
    """Return the body of a definition without its docstring."""
    return node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]


def _spelled_code(code: CodeType, docstring: str | None) -> Iterator[str]:
    """Yield names and constants of compiled code and of the functions inside it."""
    yield from ("(", *code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _spelled_code(constant, None)
        elif isinstance(constant, frozenset):
            yield f"frozenset:{sorted(map(ascii, constant))}"
        elif constant is not None and constant != docstring:
            yield from _spelled_constant(constant)
    yield ")"


# ── Names of steps ───────────────────────────────────────────────────────────────────────────────────────────────────

_NAMED: Final = {
    "step": "name",
    "act": "action",
    "wait_for_signal": "name",
    "child": "workflow",
    "hand_off": "workflow",
}
"""What the methods of the context call the parameter that names the step."""

_OF_VARIABLE: Final = {"child", "hand_off"}


def _spelled_steps(tree: _Function, *, is_method: bool) -> Iterator[str]:
    """Yield the names of steps, actions, signals and children that the text spells out, in its order.

    They are found where a method of the context is called, there or in a function inside.
    """
    context = [*tree.args.posonlyargs, *tree.args.args][int(is_method)].arg
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        match call.func:
            case ast.Attribute(value=ast.Name(id=holder), attr=method) if holder == context and method in _NAMED:
                name = _spelled_name(call, method)
                if name is not None:
                    yield name


def _spelled_name(call: ast.Call, method: str) -> str | None:
    named = next((keyword.value for keyword in call.keywords if keyword.arg == _NAMED[method]), None)
    match call.args[0] if call.args else named:
        case ast.Constant(value=str(name)) if method not in _OF_VARIABLE:
            return name
        case ast.Name(id=name) | ast.Attribute(attr=name) if method in _OF_VARIABLE:
            return name
        case _:
            return None
