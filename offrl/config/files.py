"""Configs in files and on the command line, and where shipped files are found."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

PROJECT_ROOT = Path(__file__).parents[2]


def find_file(path: str | Path, *folders: str) -> Path:
    """``path`` as it is, or below the project, or in one of its ``folders``; absolute.

    So the shipped configs and data are found from any working directory.
    """
    candidates = [Path(path).expanduser()]
    if not candidates[0].is_absolute():
        candidates += [PROJECT_ROOT / folder / path for folder in ("", *folders)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    places = dict.fromkeys(str(candidate.absolute()) for candidate in candidates)
    elsewhere = f" (looked for {', '.join(places)})" if candidates[1:] else ""
    raise FileNotFoundError(f"{path}: no such file{elsewhere}")


class _YamlLoader(yaml.SafeLoader):
    """YAML 1.1 reads ``1e-4`` as text; everybody who writes a learning rate means a number."""


_YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_config_file(path: str | Path) -> dict[str, Any]:
    """The nested dict in a JSON or YAML file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        if Path(path).suffix in (".yaml", ".yml"):
            content = yaml.load(text, Loader=_YamlLoader)  # noqa: S506 (derives from SafeLoader)
        else:
            content = json.loads(text)
    except (UnicodeDecodeError, json.JSONDecodeError, yaml.YAMLError) as error:
        raise ValueError(
            f"{path}: not valid JSON or YAML: {' '.join(str(error).split())}"
        ) from None
    if not isinstance(content, dict) or "algo_name" not in content:
        raise ValueError(f'{path}: a config is a map with the key "algo_name", e.g. "bc"')
    return content


def parse_override(text: str) -> dict[str, Any]:
    """``train.batch_size=256`` as a nested dict; the value is JSON, or text where it is not."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise ValueError(f"--set {text}: expected KEY=VALUE, e.g. train.batch_size=256")
    try:
        nested: Any = json.loads(value)
    except json.JSONDecodeError:
        nested = value
    for part in reversed(path.split(".")):
        nested = {part: nested}
    return nested
