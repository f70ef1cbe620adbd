"""Mutants that no test can tell from the original, each with the reason: `mutation.py` does not count them.

A mutant is named by its module, the line as it is and the line as the mutant has it, in the way in which a survivor is
printed; so an entry follows its line wherever it moves, and is void once the line changes.
"""

from __future__ import annotations

from typing import Final

__all__ = ["EQUIVALENT"]

_STRICT: Final = "both are of one length here, which `strict` only states"

EQUIVALENT: Final[dict[tuple[str, str, str], str]] = {
    (
        "eventlog/entry.py",
        "if len(data) < FIXED_SIZE or not data.startswith(LABEL):",
        "if (len(data) <= FIXED_SIZE) or not data.startswith(LABEL):",
    ): "the fixed part alone holds no text, and is refused as cut short",
    (
        "eventlog/entry.py",
        "entry = Entry(**dict(zip(Entry.__struct_fields__, (*fields, *texts), strict=True)))",
        "entry = Entry(**dict(zip(Entry.__struct_fields__, (*fields, *texts))))",
    ): _STRICT,
    (
        "eventlog/entry.py",
        "entry = Entry(**dict(zip(Entry.__struct_fields__, (*fields, *texts), strict=True)))",
        "entry = Entry(**dict(zip(Entry.__struct_fields__, (*fields, *texts), strict=False)))",
    ): _STRICT,
    (
        "eventlog/codec/encoding.py",
        "for name, field in zip(cls.__struct_fields__, info.fields, strict=True):",
        "for name, field in zip(cls.__struct_fields__, info.fields):",
    ): _STRICT,
    (
        "eventlog/codec/encoding.py",
        "for name, field in zip(cls.__struct_fields__, info.fields, strict=True):",
        "for name, field in zip(cls.__struct_fields__, info.fields, strict=False):",
    ): _STRICT,
    (
        "eventlog/codec/encoding.py",
        "for value, types in zip(fields, exact, strict=True):",
        "for value, types in zip(fields, exact):",
    ): _STRICT,
    (
        "eventlog/codec/encoding.py",
        "for value, types in zip(fields, exact, strict=True):",
        "for value, types in zip(fields, exact, strict=False):",
    ): _STRICT,
    (
        "eventlog/codec/upcasting.py",
        "return all(_is_same_value(*pair) for pair in zip(ours, theirs, strict=True))",
        "return all(_is_same_value(*pair) for pair in zip(ours, theirs))",
    ): _STRICT,
    (
        "eventlog/codec/upcasting.py",
        "return all(_is_same_value(*pair) for pair in zip(ours, theirs, strict=True))",
        "return all(_is_same_value(*pair) for pair in zip(ours, theirs, strict=False))",
    ): _STRICT,
}
"""(module, line, changed line) → why nobody can notice."""
