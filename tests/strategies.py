"""What property tests draw from."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["exact_plain", "identical", "json_plain", "texts"]

SAFE: int = 2**53 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
floats = st.floats(allow_nan=False, allow_infinity=False)


def _nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=20,
    )


exact_plain = _nested(st.none() | st.booleans() | st.integers() | st.integers(-(10**400), 10**400) | floats | texts)
"""Everything that is plain data."""

json_floats = floats.filter(lambda number: not SAFE < abs(number) < 1e21)
json_plain = _nested(st.none() | st.booleans() | st.integers(-SAFE, SAFE) | json_floats | texts)
"""Plain data that has a canonical form as well."""


def identical(left: Any, right: Any, *, in_order: bool = True) -> bool:
    """Say whether two values are equal and of the same types all the way down, with keys in the same order if asked."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        if left.keys() != right.keys() or (in_order and list(left) != list(right)):
            return False
        return all(identical(left[key], right[key], in_order=in_order) for key in left)
    if isinstance(left, list):
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(identical(*pair, in_order=in_order) for pair in pairs)
    return repr(left) == repr(right)
