"""Reads YAML configs."""

import re
from collections import Counter
from typing import Any

import yaml

from offrl.registry import shown

# Numbers that YAML 1.1 reads in base 8 or 60, and later versions otherwise, or the reverse.
_AMBIGUOUS = re.compile(
    r"[-+]?0[0-9_]+|[-+]?0o[0-7_]+|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
)


class _YamlLoader(yaml.SafeLoader):
    """Reads ``1e-4`` as a number, which is text in YAML 1.1, and refuses other values that YAML 1.1
    reads in a surprising way."""

    def construct_scalar(self, node: Any) -> Any:
        kind = node.tag.rpartition(":")[2]
        is_number = kind in ("int", "float") or getattr(node, "style", "") is None
        if kind == "timestamp" or is_number and _AMBIGUOUS.fullmatch(node.value):
            problem = f"{shown(node.value)} can be read in several ways"
            remedy = "write a plain number, or quotes around text"
            raise yaml.constructor.ConstructorError(
                None, None, f"{problem}; {remedy}", node.start_mark
            )
        return super().construct_scalar(node)

    def flatten_mapping(self, node: Any) -> None:
        """Refuse duplicate keys; keys that ``<<`` merges in are overridden, as in YAML."""
        counts = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        for key, _ in reversed(node.value):
            if isinstance(key.value, str) and counts[key.value] > 1:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {shown(key.value)} is given twice", key.start_mark
                )
        super().flatten_mapping(node)
        last = {str(key.value): (key, value) for key, value in node.value}
        node.value = list(last.values())


_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def from_yaml(text: str) -> Any:
    """Read a text in YAML; ``ValueError`` if it is not valid."""
    try:
        return yaml.load(text, Loader=_YamlLoader)  # noqa: S506 (derives from SafeLoader)
    except RecursionError:
        raise ValueError("sections within sections, over too many levels") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (LookupError, AttributeError, TypeError) as error:  # PyYAML's own, of `!!bool 3`, say
        raise ValueError(f"a value is not what its tag says ({error})") from None
