"""The JSON Schema (draft 2020-12) of configs, by which editors complete, check and explain keys."""

import warnings
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import PydanticJsonSchemaWarning, models_json_schema

from offrl.config.build import SCHEMA_KEY
from offrl.config.schema import Config
from offrl.config.section import Section
from offrl.registry import ALGO_CONFIGS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN_ALGORITHM = r"^[\w-]+(\.[\w-]+)+$"  # my_package.my_algo
UNKNOWN = object()


def config_schema() -> dict[str, Any]:
    """Make the schema of all algorithms' configs, in which the keys of ``algo`` depend on
    ``algo_name``. Every key has its type, limits, default and description. A user's own algorithm
    may have any keys."""
    classes = {name: ALGO_CONFIGS[name] for name in ALGO_CONFIGS.names()}
    sections = {name: section_schema(cls()) for name, cls in classes.items()}
    schema = section_schema(Config(algo_name=""))
    # A training from a checkpoint may leave its algorithm out.
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["experiment"]}]
    keys = dict(schema["properties"])
    usual = keys["observation"]
    for section in ("algo", "observation"):
        keys[section] = {"type": "object", "description": keys[section]["description"]}
    own_observations = {
        name: {"observation": section_schema(cls.OBSERVATION())} if cls.OBSERVATION else {}
        for name, cls in classes.items()
    }
    names = [name for name, own in own_observations.items() if not own]
    keys["algo_name"] = {
        "description": keys["algo_name"]["description"],
        "anyOf": [{"enum": list(sections)}, {"type": "string", "pattern": OWN_ALGORITHM}],
    }
    address = "Address of this schema, for editors. offrl does not look at it."
    return {
        "$schema": DIALECT,
        "title": "Config of offrl",
        **schema,
        "properties": {SCHEMA_KEY: {"type": "string", "description": address}, **keys},
        "allOf": [
            {
                "if": {"properties": {"algo_name": {"const": name}}, "required": ["algo_name"]},
                "then": {"properties": {"algo": {"$ref": f"#/$defs/{name}"}, **own}},
            }
            for name, own in own_observations.items()
        ]
        + [
            {
                "if": {"properties": {"algo_name": {"enum": names}}, "required": ["algo_name"]},
                "then": {"properties": {"observation": usual}},
            }
        ],
        "$defs": sections,
    }


def section_schema(defaults: Section) -> dict[str, Any]:
    """Make the schema of a section and its subsections, without references; values are defaults."""
    section = type(defaults)
    with warnings.catch_warnings():
        # About defaults that are a Map; all of these are replaced.
        warnings.simplefilter("ignore", PydanticJsonSchemaWarning)
        references, content = models_json_schema([(section, "validation")])
    return _complete(references[section, "validation"], content["$defs"], defaults.to_dict())


def _complete(node: Mapping[str, Any], parts: Mapping[str, Any], default: Any) -> dict[str, Any]:
    """Complete a node of the schema by the parts that it refers to, and its default."""
    node = dict(node)
    if "$ref" in node:
        part = parts[node.pop("$ref").rpartition("/")[2]]
        node = {**part, **node}
    node.pop("title", None)
    if "properties" in node:
        known = default if isinstance(default, Mapping) else {}
        node["properties"] = {
            name: _complete(key, parts, known.get(name, UNKNOWN))
            for name, key in node["properties"].items()
        }
        node.pop("default", None)  # its keys have defaults
    elif default is not UNKNOWN:
        node["default"] = default
    entry = node.get("additionalProperties")
    if isinstance(entry, Mapping):
        node["additionalProperties"] = _complete(entry, parts, UNKNOWN)
        if "$ref" in entry:  # default entries have defaults of their own
            known = node.pop("default", {})
            node["properties"] = {k: _complete(entry, parts, v) for k, v in known.items()}
    if "items" in node:
        node["items"] = _complete(node["items"], parts, UNKNOWN)
    if "anyOf" in node:
        node["anyOf"] = [_complete(one, parts, UNKNOWN) for one in node["anyOf"]]
    return node
