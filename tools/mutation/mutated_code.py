"""The code of a mutant: compiled from the changed text, and put where that of the original is.

Nothing is written to the sources. Either the module is imported with the changed text (`MutantFinder`), or the
functions that exist of it already get the code of the mutant (`swap`).
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

from tools.mutation.mutants import Mutant

__all__ = ["ROOT", "MutantFinder", "function_of", "functions_of", "mark", "source_of", "swap", "swapped_codes"]

ROOT: Final = Path(__file__).resolve().parents[2]

_MARK: Final = "_mutation_called"


class MutantFinder(MetaPathFinder):
    """Finds one module, and nothing else: the mutant of it."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = mutant.module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load the mutant, if its module is wanted."""
        if name != self._name:
            return None
        file = str(ROOT / self._mutant.module)
        return spec_from_file_location(name, file, loader=_Loader(name, file, self._mutant))


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, mutant: Mutant) -> None:
        super().__init__(name, path)
        self._mutant = mutant

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the mutant, past every cache."""
        return _compiled(self._mutant.applied(source_of(self._mutant.module)), self.path)


def function_of(mutant: Mutant) -> str | None:
    """Return the qualified name of the outermost function in whose body a mutant is; None if it is in none."""
    source = source_of(mutant.module)
    line, column = source.count("\n", 0, mutant.start) + 1, mutant.start - source.rfind("\n", 0, mutant.start) - 1
    for name, node in _outermost(_tree(mutant.module), ""):
        begin, last = node.body[0], node.body[-1]
        if (begin.lineno, begin.col_offset) <= (line, column) <= (last.end_lineno or 0, last.end_col_offset or 0):
            return name
    return None


def _outermost(node: ast.AST, within: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Give every function that is in no other, by its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _outermost(child, f"{within}{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield within + child.name, child


def swapped_codes(mutant: Mutant) -> dict[tuple[str, int], CodeType]:
    """Return the code of each function in the mutant, by the name and the line that it has in the original.

    Nothing if one of them, a lambda for example, is in only one of the two.
    """
    source, file = source_of(mutant.module), str(ROOT / mutant.module)
    pairs = [(_compiled(source, file), _compiled(mutant.applied(source), file))]
    codes: dict[tuple[str, int], CodeType] = {}
    for old, new in pairs:  # grows while it is read
        codes[old.co_qualname, old.co_firstlineno] = new
        olds, news = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (old, new))
        if len(olds) != len(news):
            return {}
        pairs += zip(olds, news, strict=True)
    return codes


def swap(mutant: Mutant, functions: Iterable[FunctionType]) -> bool:
    """Put the code of a mutant into every function of its module that exists. Return whether that was possible."""
    codes, name = swapped_codes(mutant), function_of(mutant)
    found = False
    for function in functions:
        code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
        if code is None or code.co_freevars != function.__code__.co_freevars:
            return False
        function.__code__ = code
        found = found or function.__qualname__ == name
    return found


def mark(module: str, functions: Iterable[FunctionType], called: Callable[[str], object]) -> None:
    """Have each of a module's functions say, by the name that `function_of` gives, that it is called."""
    tree = ast.parse(source_of(module))
    for name, node in _outermost(tree, ""):
        begins = ast.parse(f"{_MARK}({name!r})").body[0]
        for part in ast.walk(begins):
            if isinstance(part, ast.expr | ast.stmt):
                part.lineno = part.end_lineno = node.body[0].lineno
        node.body.insert(0, begins)
    codes: dict[tuple[str, int], CodeType] = {}
    waiting: list[CodeType] = [compile(tree, str(ROOT / module), "exec", dont_inherit=True)]
    for code in waiting:  # grows while it is read
        codes[code.co_qualname, code.co_firstlineno] = code
        waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
    for function in functions:
        function.__globals__[_MARK] = called
        function.__code__ = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]


def functions_of(modules: Iterable[str]) -> dict[str, list[FunctionType]]:
    """Return all functions that exist of each module."""
    files = {str(ROOT / module): module for module in modules}
    found: dict[str, list[FunctionType]] = {module: [] for module in files.values()}
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in files:
            found[files[each.__code__.co_filename]].append(each)
    return found


@cache
def source_of(module: str) -> str:
    """Return the text of a module, as it was when it was read first."""
    return (ROOT / module).read_text(encoding="utf-8")


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(source_of(module))


def _compiled(source: str, file: str) -> CodeType:
    code: CodeType = compile(source, file, "exec", dont_inherit=True)
    return code
