"""Directives that write the reference of config keys from the JSON Schema of configs.

``config-section`` (train), ``config-shared`` (paths, with all below them), ``config-algorithms``.
Every key is a link target of its path, ``[text](#train.batch_size)``, and is found by the search. A
key that has no description, or that no page shows, ends the build.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache

import config_keys
from config_keys import Key, algorithm_keys, common_keys, own_keys, shared_keys
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

COMMON = ("experiment", "train", "observation", "meta")
# What is code in a description: dotted paths, names with an underscore, text in quotes, constants.
CODE = re.compile(
    r'(?:experiment|train|algo|observation)(?:\.\w+)+|\b\w+_\w+\b|--\w+|"[^"]*"|\b(?:null|true|false)\b'
)


class KeyDirective(SphinxDirective):
    """What the directives have in common: how a key looks."""

    def entry(self, key: Key, target: str, facts: Iterable[nodes.Node]) -> nodes.Node:
        signature = addnodes.desc_signature("", "", classes=["sig", "sig-object"], ids=[target])
        signature += addnodes.desc_name("", key.path)
        content = addnodes.desc_content()
        content += nodes.paragraph("", "", *self.text(key.description))
        content += nodes.paragraph("", "", *facts, classes=["config-facts"])
        description = addnodes.desc("", signature, content, domain="std", objtype="confkey")
        description["classes"] += ["std", "confkey"]
        self.note(
            key.path if target == key.path else f"{key.path} ({target.split(':')[0]})", target
        )
        return description

    def note(self, name: str, target: str) -> None:
        """Let a key be linked to, found by the search, and known as shown."""
        standard = self.env.domains.standard_domain
        standard.note_object("confkey", name, target, location=self.get_location())
        standard.note_hyperlink_target(target, self.env.docname, target, name)

    def text(self, words: str) -> Iterator[nodes.Node]:
        """Words with what is code in them, of which the paths of keys are links."""
        start = 0
        for match in CODE.finditer(words):
            yield nodes.Text(words[start : match.start()])
            yield self.link(match[0])
            start = match.end()
        yield nodes.Text(words[start:])

    def link(self, code: str, path: str | None = None) -> nodes.Node:
        """Code, which is a link to the key of a path if there is one."""
        path = path or code
        literal = nodes.literal(code, code)
        if path not in known_targets():
            return literal
        return addnodes.pending_xref(
            "",
            literal,
            refdomain="std",
            reftype="confkey",
            reftarget=path,
            refdoc=self.env.docname,
            refwarn=True,
        )

    def facts(self, key: Key, defaults: Iterable[nodes.Node], origin: str | None) -> Iterator:
        yield from [nodes.strong("", "Type: "), *self.text(key.type)]
        defaults = list(defaults)
        if key.is_leaf:
            yield nodes.Text(" · ")
            yield nodes.strong("", "Default: ")
            yield from defaults or [nodes.Text("none, you must give it")]
        if origin:
            yield nodes.Text(f" · {origin}")

    def plain_facts(self, key: Key, origin: str | None) -> Iterator[nodes.Node]:
        defaults = [] if key.default is None else [nodes.literal("", key.default)]
        return self.facts(key, defaults, origin)


class ConfigSection(KeyDirective):
    """The keys of one of the sections that all algorithms have."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        keys = common_keys(self.arguments[0])
        return [self.entry(k, k.path, self.plain_facts(k, k.origin())) for k in keys]


class ConfigShared(KeyDirective):
    """The keys of ``algo`` that several algorithms have: those named, and all below them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        roots = self.arguments[0].split()
        chosen = [p for p in shared_keys() if any(f"{p}.".startswith(f"{r}.") for r in roots)]
        usual = max((set(shared_keys()[path]) for path in chosen), key=len)
        names = "all algorithms" if len(usual) == len(algorithm_keys()) else _listed(usual)
        says = f"The keys are those of {names}, unless a key names others."
        return [nodes.paragraph("", says), *(self._shared(path, usual) for path in chosen)]

    def _shared(self, path: str, usual: set[str]) -> nodes.Node:
        group = shared_keys()[path]
        key = next(iter(group.values()))
        facts = list(self.facts(key, self._defaults(path), key.origin(tuple(group))))
        if set(group) != usual:
            facts.append(nodes.Text(f" · of {_listed(group)}"))
        return self.entry(key, path, facts)

    def _defaults(self, path: str) -> Iterator[nodes.Node]:
        if "NETWORK" in path:
            default = next(iter(shared_keys()[path].values())).default
            yield from [] if default is None else [nodes.literal("", default)]
            return
        by_default: dict[str, list[str]] = {}
        for name, key in shared_keys()[path].items():
            if key.default is not None:
                by_default.setdefault(key.default, []).append(name)
        for i, (default, names) in enumerate(sorted(by_default.items(), key=lambda x: -len(x[1]))):
            yield from [nodes.Text("; " if i else ""), nodes.literal("", default)]
            yield nodes.Text(f" ({', '.join(names)})" if i else "")


class ConfigAlgorithms(KeyDirective):
    """A section for each algorithm: its own keys, the names of those that it shares, defaults."""

    def run(self) -> list[nodes.Node]:
        return [self._algorithm(name) for name in algorithm_keys()]

    def _algorithm(self, name: str) -> nodes.section:
        target = f"config-{name}"
        section = nodes.section("", nodes.title("", name), ids=[target], names=[target])
        standard = self.env.domains.standard_domain
        standard.note_hyperlink_target(target, self.env.docname, target, name)
        own = own_keys(name)
        for key in own:
            target = key.path if key.path in known_targets() else f"{name}:{key.path}"
            if key.path in shared_keys():  # with another meaning than here
                target = f"{name}:{key.path}"
            section += self.entry(key, target, self.plain_facts(key, key.origin((name,))))
        section += self._shared_names(name)
        section += self._unusual(name)
        return section

    def _shared_names(self, name: str) -> nodes.paragraph:
        optim = "algo.optim_params"
        networks = list(algorithm_keys()[name][optim].node["properties"])
        paths = [p for p, group in shared_keys().items() if name in group and optim not in p]
        paths = [p for p in paths if algorithm_keys()[name][p].is_leaf]
        paragraph = nodes.paragraph("", "Shared keys: ")
        if networks:
            paragraph += [self.link(optim), nodes.Text(" (")]
            for i, network in enumerate(networks):
                paragraph += [nodes.Text(", " if i else ""), nodes.literal("", network)]
            paragraph += nodes.Text("), ")
        for i, path in enumerate(paths):
            paragraph += [nodes.Text(", " if i else ""), self.link(path)]
        paragraph += nodes.Text(".")
        return paragraph

    def _unusual(self, name: str) -> list[nodes.Node]:
        rows = list(config_keys.unusual_defaults(name))
        if not rows:
            return []
        table = nodes.bullet_list(classes=["config-defaults"])
        for path, default in rows:
            explained = re.sub(r"(algo\.optim_params\.)\w+", r"\1NETWORK", path)
            explained = explained.replace("action_config.actions.", "action_config.ACTION_KEY.")
            text = [self.link(path, explained), nodes.Text(": "), nodes.literal("", default)]
            table += nodes.list_item("", nodes.paragraph("", "", *text))
        return [nodes.paragraph("", "Defaults that are not the usual ones:"), table]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


@cache
def known_targets() -> frozenset[str]:
    """The paths that are link targets by themselves: of keys that are shown once."""
    common = {key.path for section in COMMON for key in common_keys(section)}
    own = Counter(key.path for name in algorithm_keys() for key in own_keys(name))
    return frozenset(common | set(shared_keys()) | {path for path, n in own.items() if n == 1})


def check_all_are_shown(app: Sphinx, env: BuildEnvironment) -> None:
    """End the build where a key is on no page."""
    shown = {name for _, name in env.domains.standard_domain.objects}
    if not any(name.startswith("train.") for name in shown):
        return  # a site without a reference
    wanted = known_targets() | {key.path for name in algorithm_keys() for key in own_keys(name)}
    missing = [p for p in sorted(wanted) if p not in {name.partition(" ")[0] for name in shown}]
    if missing:
        raise ExtensionError(f"no page shows the config key {missing[0]} (docs/reference)")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_object_type("confkey", "confkey", objname="config key")
    app.add_directive("config-section", ConfigSection)
    app.add_directive("config-shared", ConfigShared)
    app.add_directive("config-algorithms", ConfigAlgorithms)
    app.connect("env-check-consistency", check_all_are_shown)
    return {"parallel_read_safe": True}
