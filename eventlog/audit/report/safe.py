"""HTML that cannot be got wrong: whatever is a `str` is data, and is escaped; only what is made here is markup.

`tag` takes texts and `Safe`, so that forgetting to escape is no mistake that can be made: a text that is put together
by hand is a `str` again, and shows as what it is. Data is made visible as on every other surface: hidden, control and
bidirectional characters are escapes, set off by a class of their own, so that a backslash of the data cannot pass for
one. The names of elements and attributes are from a list; none comes from data.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

from eventlog.audit.report.style import STYLE
from eventlog.text import is_hidden, visible

__all__ = ["POLICY", "Safe", "document", "joined", "preformatted", "tag"]

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may load for the report: nothing. It may use the style sheet that is in it."""

_ELEMENTS: Final = frozenset(
    {"a", "article", "code", "dd", "details", "div", "dl", "dt", "footer", "h1", "h2", "h3", "header", "li", "main"}
    | {"nav", "ol", "p", "pre", "section", "span", "strong", "summary", "time", "ul"}
)
_ATTRIBUTES: Final = frozenset({"class", "href", "id"})


class Safe(str):
    """Markup. Only this module makes it."""

    __slots__ = ()


Part = Safe | str | None


def tag(name: str, *parts: Part, **attributes: str) -> Safe:
    """Return an element with these parts, those that are there, one behind the other.

    `class_` is the attribute of that name. A link leads to a place in the page itself.
    """
    assert name in _ELEMENTS, f"{name!r} is no element of a report"
    spelled = "".join(_attribute(key.rstrip("_"), value) for key, value in attributes.items())
    return Safe(f"<{name}{spelled}>{joined(*parts)}</{name}>")


def joined(*parts: Part) -> Safe:
    """Return parts one behind the other, those that are there."""
    return Safe("".join(_markup(part) for part in parts if part is not None))


def preformatted(lines: Iterable[str], **attributes: str) -> Safe:
    """Return lines that keep their indentation; a line break in one of them is shown as data."""
    return tag("pre", Safe("\n".join(map(_markup, lines))), **attributes)


def document(title: str, body: Safe) -> Safe:
    """Return the whole page: one file without scripts, which asks for nothing from outside."""
    head = (
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY, quote=False)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{html.escape(visible(title))}</title>",
        f"<style>{STYLE}</style>",
    )
    return Safe(
        "\n".join(
            ("<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", body, "</body></html>\n")
        )
    )


def _attribute(name: str, value: str) -> str:
    assert name in _ATTRIBUTES, f"{name!r} is no attribute of a report"
    assert name != "href" or value.startswith("#"), "a report links to nothing but itself"
    return f' {name}="{html.escape(visible(value))}"'


def _markup(part: Safe | str) -> str:
    if isinstance(part, Safe):
        return part
    if part.isascii() and part.isprintable():
        return html.escape(part)
    return "".join(map(_character, part))


def _character(character: str) -> str:
    if is_hidden(character):
        return f'<span class="hidden">{visible(character)}</span>'
    return html.escape(character)
