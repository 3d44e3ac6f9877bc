"""The directive ``commands``: every command of the ``offrl`` program, from its parser."""

import argparse
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from offrl.__main__ import commands, make_parser
from offrl.tools import sentence

WIDTH = 88  # of usages, in characters


class Commands(SphinxDirective):
    """A section for each command: what it does, its usage, options and an example."""

    def run(self) -> list[nodes.Node]:
        return [self._section(p.prog, p) for p in _parsers_in(make_parser(commands())).values()]

    def _section(self, title: str, parser: argparse.ArgumentParser) -> nodes.section:
        target = title.replace(" ", "-")
        section = nodes.section("", nodes.title("", title), ids=[target], names=[target])
        standard = self.env.domains.standard_domain
        standard.note_hyperlink_target(target, self.env.docname, target, title)
        section += nodes.paragraph("", "", *_text(parser.description or ""))
        section += _code(_usage(parser))
        options = [a for a in parser._actions if _is_shown(a)]
        if options:
            section += nodes.definition_list("", *map(_option, options), classes=["options"])
        if parser.epilog:
            section += [nodes.paragraph("", "Example:"), *_examples(parser.epilog)]
        for name, part in _parsers_in(parser).items():
            section += self._section(f"{title} {name}", part)
        return section


def _parsers_in(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _usage(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=WIDTH)
    return parser.format_usage().removeprefix("usage: ").rstrip()


def _is_shown(action: argparse.Action) -> bool:
    is_other = isinstance(action, (argparse._HelpAction, argparse._SubParsersAction))
    return not is_other and action.help != argparse.SUPPRESS


def _option(action: argparse.Action) -> nodes.definition_list_item:
    values = argparse.HelpFormatter("")._format_args(action, _metavar(action))
    names = ", ".join(action.option_strings)
    term = nodes.term("", "", nodes.literal("", f"{names} {values}".strip()))
    says = sentence(action.help or f"the {action.dest.replace('_', ' ')}")
    definition = nodes.definition("", nodes.paragraph("", "", *_text(says)))
    return nodes.definition_list_item("", term, definition)


def _text(words: str) -> Iterator[nodes.Node]:
    """A help text, in which what stands in quotes is code."""
    for i, part in enumerate(re.split(r"'([^']*)'(?!\w)", words)):
        yield nodes.literal("", part) if i % 2 else nodes.Text(part)


def _metavar(action: argparse.Action) -> str:
    if action.choices:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _examples(epilog: str) -> Iterator[nodes.Node]:
    """What an epilog says: commands are code, other sentences are text."""
    for part in re.split(r";\s+|(?<!\.)\.\s+", epilog.removeprefix("example: ")):
        if part.startswith("offrl "):
            yield _code(part)
        elif part:
            yield nodes.paragraph("", sentence(part))


def _code(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
