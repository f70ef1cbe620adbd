"""The public names: sorted, complete, loadable, and cheap to import."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest

import eventlog
import projections

MODULES = sorted(
    info.name
    for package in (eventlog, projections)
    for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not info.name.endswith("__main__")
)


def test_every_public_name_of_the_package_loads_and_is_documented() -> None:
    for name in eventlog.__all__:
        value = getattr(eventlog, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_the_public_names_are_sorted_and_listed_by_dir() -> None:
    assert eventlog.__all__ == sorted(eventlog.__all__)
    assert set(eventlog.__all__) <= set(dir(eventlog))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = eventlog.nothing


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is_for_and_lists_its_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    names = getattr(module, "__all__", None)
    assert names is not None, f"{name} has no __all__"
    assert all(hasattr(module, each) for each in names)
    assert list(names) == sorted(names, key=_ruff_order), f"{name}.__all__ is not sorted"


def _ruff_order(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest, as the formatter of this project sorts them."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_importing_the_package_loads_no_driver_and_no_terminal_library() -> None:
    heavy = ("aiosqlite", "sqlite3", "structlog", "rich", "click", "asyncio", "msgspec")
    code = f"import sys, eventlog; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_the_lazy_names_and_the_typed_imports_are_the_same() -> None:
    source = inspect.getsource(eventlog).split("if TYPE_CHECKING:")[1].split("__version__")[0]
    typed = {word.strip(" ,()") for line in source.splitlines() for word in line.partition(" import ")[2].split(",")}
    typed |= {line.strip(" ,") for line in source.splitlines() if line.startswith("        ")}
    assert {name for name in typed if name} == set(eventlog._MODULE_OF)


@pytest.mark.parametrize("path", [b"log.db", "", "a\0b"])
def test_a_log_has_a_path_that_is_text(path: object) -> None:
    with pytest.raises(eventlog.InvalidInput, match="the path of a log"):
        eventlog.open(path)  # type: ignore[call-overload]
