"""Docstrings in offrl's style for Sphinx: a line ``name: what it is`` tells about an argument."""

import re
from typing import Any

from sphinx.application import Sphinx

from offrl.config import Section

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)")


def arguments_as_fields(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn paragraphs that begin with an argument's name into fields; the lines that follow one
    are indented in the docstring already."""
    for i, line in enumerate(lines):
        begins = i == 0 or not lines[i - 1].strip() or lines[i - 1].startswith((":param", " "))
        if begins and ARGUMENT.match(line):
            lines[i] = ARGUMENT.sub(r":param \1: ", line)


def sections_without_keys(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any
) -> tuple[str, None] | None:
    """The keys of a config's section are on pages of their own."""
    is_section = isinstance(obj, type) and issubclass(obj, Section)
    return ("(**keys)", None) if is_section else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", arguments_as_fields)
    app.connect("autodoc-process-signature", sections_without_keys)
    return {"parallel_read_safe": True}
