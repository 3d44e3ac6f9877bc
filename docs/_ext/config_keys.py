"""What a config may hold, as a person reads it: every key of the JSON Schema of configs.

A key has its dotted path, its type in words, its default, its meaning, and whether robomimic 0.5.0
has it, too, by the complete configs that were recorded from it (``tests/golden``).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from offrl.config.json_schema import config_schema, section_schema
from offrl.config.schema import Config

GOLDEN = Path(__file__).parents[2] / "tests/golden"
# What stands for a name that the user of a map chooses.
ANY = {"optim_params": "NETWORK", "action_config": "ACTION_KEY", "encoder": "MODALITY"}
PLURAL = {
    "text": "texts",
    "a map": "maps",
    "a number": "numbers",
    "a whole number": "whole numbers",
    "a list": "lists",
    "any value": "any values",
}

Node = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    path: str  # algo.critic.layer_dims
    node: Node
    is_entry: bool  # below a list, or a map with names of the user's

    @property
    def description(self) -> str:
        if not self.node.get("description"):
            raise ValueError(f"{self.path}: the key has no description (offrl/config, offrl/algos)")
        return self.node["description"]

    @property
    def is_leaf(self) -> bool:
        return "properties" not in self.node

    @property
    def type(self) -> str:
        name = self.path.rpartition(".")[2]
        if name in ANY and not self.is_leaf:
            return f"a section for each {ANY[name]}"
        if part(self.node):
            return f"a section with the keys of {part(self.node)}"
        return in_words(self.node) if self.is_leaf else "a section"

    @property
    def default(self) -> str | None:
        """As JSON; none of a section, and of a key that must be given."""
        return json.dumps(self.node["default"]) if "default" in self.node else None

    def meaning(self) -> tuple[str, str]:
        """What two algorithms' keys of one path share, if they are the same."""
        return self.description, self.type

    def origin(self, algorithms: tuple[str, ...] = ()) -> str | None:
        """Whose key it is; ``None`` where nothing was recorded that could tell."""
        if self.node.get("deprecated"):
            return "a key of some versions of robomimic"
        has = [name for name in algorithms if self.path in recorded(name)]
        if has and len(has) < len([name for name in algorithms if recorded(name)]):
            return f"robomimic's key for {_and(has)}, offrl's own for others"
        if has or (not algorithms and self.path in recorded()):
            return "robomimic's key"
        return None if self.is_entry else "offrl's own key"


def keys_of(node: Node, path: str, is_entry: bool = False) -> Iterator[Key]:
    """Every key of a section of the schema, depth first."""
    for name, key in node.get("properties", {}).items():
        here = f"{path}.{name}"
        entry = key.get("additionalProperties")
        is_map = isinstance(entry, Mapping) and "properties" in entry
        yield Key(here, key, is_entry)
        if part(key):
            continue
        if is_map:
            yield from keys_of(entry, f"{here}.{ANY[name]}", is_entry=True)
        elif name == "data":
            entry = next(one["items"]["anyOf"][1] for one in key["anyOf"] if "items" in one)
            yield from keys_of(entry, here, is_entry=True)
        else:
            yield from keys_of(key, here, is_entry)


@cache
def common_keys(section: str) -> tuple[Key, ...]:
    schema = section_schema(Config(algo_name=""))
    return tuple(keys_of(schema["properties"][section], section))


def part(node: Node) -> str | None:
    """The algorithm whose keys a section has that is a part of another algorithm's."""
    keys = set(node.get("properties", {}))
    if "optim_params" not in keys:
        return None
    sections = config_schema()["$defs"].items()
    return next((name for name, other in sections if set(other["properties"]) == keys), None)


@cache
def algorithm_keys() -> dict[str, dict[str, Key]]:
    """The keys of ``algo`` of each algorithm, by their paths."""
    return {
        name: {key.path: key for key in keys_of(section, "algo")}
        for name, section in config_schema()["$defs"].items()
    }


@cache
def shared_keys() -> dict[str, dict[str, Key]]:
    """The keys that mean the same in several algorithms, by path and algorithm. Where a path means
    several things, it is the one of most algorithms."""
    meanings: dict[str, dict[tuple[str, str], dict[str, Key]]] = {}
    for name, keys in algorithm_keys().items():
        for path, key in keys.items():
            meanings.setdefault(path, {}).setdefault(key.meaning(), {})[name] = key
    shared = {path: max(groups.values(), key=len) for path, groups in meanings.items()}
    return {path: group for path, group in shared.items() if len(group) > 1}


def own_keys(name: str) -> list[Key]:
    """The keys that an algorithm does not share with another."""
    keys = algorithm_keys()[name].values()
    return [key for key in keys if name not in shared_keys().get(key.path, {})]


def usual_default(path: str) -> str | None:
    """The default that most of the algorithms have for a key that they share."""
    return Counter(key.default for key in shared_keys()[path].values()).most_common(1)[0][0]


def unusual_defaults(name: str) -> Iterator[tuple[str, str]]:
    """Keys whose defaults an algorithm changes, with the path that explains them: of its networks'
    optimizers, of the keys that it shares, and of the other sections."""
    for key in named_entries(name):
        yield key.path, str(key.default)
    for path, group in shared_keys().items():
        if name in group and "NETWORK" not in path and group[name].default != usual_default(path):
            yield path, str(group[name].default)
    yield from other_defaults(name)


def named_entries(name: str) -> Iterator[Key]:
    """The keys of an algorithm's networks' optimizers whose defaults are not those of all."""
    section = config_schema()["$defs"][name]["properties"]["optim_params"]
    usual = {key.path: key.default for key in keys_of(section["additionalProperties"], "")}
    for network, optimizer in section["properties"].items():
        for key in keys_of(optimizer, ""):
            if key.is_leaf and key.default != usual[key.path]:
                yield Key(f"algo.optim_params.{network}{key.path}", key.node, True)


def other_defaults(name: str) -> Iterator[tuple[str, str]]:
    """The keys outside ``algo`` whose defaults an algorithm changes."""
    from offrl.config import config_factory

    def leaves(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            if isinstance(value, Mapping) and value:
                yield from leaves(value, f"{path}{key}.")
            else:
                yield f"{path}{key}", value

    usual = dict(leaves(Config(algo_name=name).to_dict(), ""))
    for path, value in leaves(config_factory(name).to_dict(), ""):
        if not path.startswith("algo") and path in usual and value != usual[path]:
            yield path, json.dumps(value)


# -- robomimic ----------------------------------------------------------------------------------


@cache
def recorded(algorithm: str | None = None) -> frozenset[str]:
    """The paths in the configs that were recorded from robomimic: of all outside ``algo``, or of
    one algorithm inside it; those of maps with the user's names under ``ANY``."""
    paths: set[str] = set()
    for file in [*GOLDEN.glob("configs/*.json"), *GOLDEN.glob("cases/*/config.json")]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if algorithm is None:
            paths.update(*(_paths(v, k) for k, v in content.items() if k != "algo"))
        elif content["algo_name"] == algorithm:
            paths.update(_paths(content["algo"], "algo"))
    return frozenset(paths)


def _paths(tree: Any, path: str) -> Iterator[str]:
    yield path
    if isinstance(tree, list):
        for item in tree:
            if isinstance(item, Mapping):
                yield from _paths(item, path)
    elif isinstance(tree, Mapping):
        any_name = ANY.get(path.rpartition(".")[2])
        for key, value in tree.items():
            yield from _paths(value, f"{path}.{any_name or key}")


# -- words --------------------------------------------------------------------------------------


def in_words(node: Node) -> str:
    """The type of a key: "a whole number from 1 on"."""
    options = _options(node)
    if "const" in node:
        return f"always {options[0]}"
    return options[0] if len(options) == 1 else f"{', '.join(options[:-1])} or {options[-1]}"


def _options(node: Node) -> list[str]:
    if "const" in node:
        return [json.dumps(node["const"])]
    if "enum" in node:
        return [json.dumps(value) for value in node["enum"]]
    if "anyOf" in node:
        return [option for one in node["anyOf"] for option in _options(one)]
    kind = node.get("type")
    if kind in ("integer", "number"):
        return [("a whole number" if kind == "integer" else "a number") + _limits(node)]
    if kind == "array":
        return [_list(node)]
    if kind == "object":
        entry = node.get("additionalProperties")
        is_plain = isinstance(entry, Mapping) and "properties" not in entry
        return [f"a map from names to {_plural(entry)}" if is_plain else "a map"]
    words = {"boolean": "true or false", "string": "text", "null": "null", None: "any value"}
    return [words[kind]]


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _limits(node: Node) -> str:
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    least, largest = node.get("minimum"), node.get("maximum")
    if least is not None and largest is not None:
        return f" from {least} to {largest}"
    parts = [f"from {least}{'' if below is not None else ' on'}"] if least is not None else []
    parts += [f"above {above}"] if above is not None else []
    parts += [f"up to {largest}"] if largest is not None else []
    parts += [f"below {below}"] if below is not None else []
    return f" {' and '.join(parts)}" if parts else ""


def _list(node: Node) -> str:
    if "anyOf" in node.get("items", {}):
        return "a list of these"
    if node.get("minItems") == node.get("maxItems") == 2:
        return f"a list of two {_plural(node['items'])}"
    least = ", one at least" if node.get("minItems") else ""
    return f"a list of {_plural(node.get('items', {}))}{least}"


def _plural(node: Node) -> str:
    words = in_words(node)
    if "enum" in node:  # names, which are their own plural
        return words
    for one, several in PLURAL.items():
        if words.startswith(one):
            return words.replace(one, several, 1)
    raise ValueError(f"no plural is known of {words!r}; add it to PLURAL")
