"""Configs in files and on the command line, and the search for shipped files."""

import filecmp
import glob
import json
import logging
import os
from collections import Counter
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from offrl import __version__
from offrl.config.content import REPEATED, check_content, place
from offrl.registry import did_you_mean
from offrl.tree import merge

log = logging.getLogger(__name__)

# In a clone, configs/ and other files are beside the package; a wheel has only configs/, in it.
_PACKAGE = Path(__file__).parents[1]
IS_WHEEL = (_PACKAGE / "configs").is_dir()
SHIPPED = _PACKAGE if IS_WHEEL else _PACKAGE.parent
LARGEST = 10_000_000  # bytes of a config file
FOLDERS = "configs", "configs/online"


def find_file(path: str | Path, *folders: str, beside: Path = Path()) -> Path:
    """Find a file relative to the folder ``beside``, among the files that ship with offrl, or in
    one of ``folders`` there. Returns its absolute path."""
    try:
        given = Path(path).expanduser()
        candidates = [beside / given]
        if not given.is_absolute():
            shipped = [SHIPPED / folder / path for folder in ("", *folders)]
            if IS_WHEEL:  # a wheel's other files are code
                shipped = [file for file in shipped if file.is_relative_to(SHIPPED / "configs")]
            candidates += shipped
        for candidate in candidates:
            if candidate.is_file():
                return candidate.resolve()
    except (OSError, RuntimeError) as error:  # a name that is too long, an unknown user's home
        why = getattr(error, "strerror", None) or error
        raise FileNotFoundError(f"{place(path)}: no such file ({why})") from None
    if candidates[0].is_dir():
        raise FileNotFoundError(f"{place(path)}: a folder; name a file in it")
    places = dict.fromkeys(place(candidate.absolute()) for candidate in candidates)
    elsewhere = f" (looked for {', '.join(places)})" if candidates[1:] else ""
    raise FileNotFoundError(f"{place(path)}: no such file{elsewhere}")


def shipped_configs(pattern: str) -> list[str]:
    """List the names of shipped configs that match a pattern."""
    return sorted(glob.glob(pattern, root_dir=SHIPPED / "configs", recursive=True))


def find_config(path: str | Path, beside: Path = Path()) -> Path:
    """Find a config as ``find_file`` does, and log which file it is if that is not obvious: it is
    not at the given path, or there is another config of that name.

    Shipped configs, which fit the code's version, precede those below ``configs/`` here.
    """
    try:
        found = find_file(path, *FOLDERS, beside=beside)
    except FileNotFoundError as error:
        try:  # shipped configs are JSON
            if Path(path).suffix not in (".yaml", ".yml"):
                raise
            found = find_file(Path(path).with_suffix(".json"), *FOLDERS, beside=beside)
        except FileNotFoundError:
            names = [Path(name).stem for name in shipped_configs("**/*.json")]
            hint = did_you_mean(Path(path).stem, names, ".json")
            raise FileNotFoundError(f"{error}.{hint}" if hint else str(error)) from None
    *_, name = str(path).split("configs/")
    here, shipped = beside / "configs" / name, SHIPPED / "configs" / name
    is_plain = found in ((beside / Path(path).expanduser()).resolve(), here.resolve())
    rivals = [] if ".." in Path(name).parts else [here, shipped]
    rivals = [r for r in rivals if r.is_file() and not filecmp.cmp(r, found, shallow=False)]
    if rivals or not is_plain:
        version = f" (offrl {__version__})" if found == shipped.resolve() else ""
        text = f"config: {found}{version}"
        for rival in rivals:
            text += f"; {rival} is another one and is not used (--config {rival} uses it)"
        log.info(text)
    return found


def read_config_file(path: str | Path) -> dict[str, Any]:
    """Read the config in a JSON or YAML file."""
    content = read_file(path)
    # With experiment.ckpt_path the algorithm may be that of the checkpoint.
    if not isinstance(content, dict) or not {"algo_name", "experiment", "alg_para"} & {*content}:
        raise ValueError(f'{place(path)}: a config is a map with the key "algo_name", e.g. "bc"')
    return content


def read_file(path: str | Path) -> Any:
    """Read the nested dicts and lists in a JSON or YAML file."""
    path, where = Path(path), place(path)
    kind, read = "JSON", _from_json
    if path.suffix.lower() in (".yaml", ".yml"):
        kind, read = "YAML", _from_yaml
    try:
        if path.is_file() and os.path.getsize(path) > LARGEST:
            raise ValueError(f"larger than {LARGEST / 1e6:.0f} MB; no config is")
        text = path.read_text(encoding="utf-8-sig")
        try:
            content = read(text)
        except ValueError as error:
            raise ValueError(f"not valid {kind}: {_one_line(error)}") from None
        return check_content(content)
    except OSError as error:
        raise type(error)(f"{where}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        message = f"not valid JSON or YAML, which are text in UTF-8: {_one_line(error)}"
        raise ValueError(f"{where}: {message}") from None
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _from_yaml(text: str) -> Any:
    from offrl.config.yaml import from_yaml

    return from_yaml(text)


def _from_json(text: str) -> Any:
    def mark_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        counts = Counter(key for key, _ in pairs)
        return {key: value if counts[key] == 1 else REPEATED for key, value in pairs}

    try:
        return json.loads(text, object_pairs_hook=mark_repeated)
    except RecursionError:
        raise ValueError("sections within sections, over too many levels") from None


def parse_override(text: str) -> dict[str, Any]:
    """Turn ``train.batch_size=256`` into a nested dict. The value is JSON, with optional quotes in
    lists and dicts (``[low_dim]``), or else text."""
    path, equals, written = text.partition("=")
    if not equals or not all(path.split(".")):
        raise ValueError(f"--set {place(text)}: expected KEY=VALUE, e.g. train.batch_size=256")
    try:
        try:
            value = _from_json(written)
        except json.JSONDecodeError:
            value = _from_yaml(written) if written.startswith(("[", "{")) else written
        return check_content(nested(path, value))
    except ValueError as error:
        raise ValueError(f"--set {place(text)}: {_one_line(error)}") from None


def nested(path: str, value: Any) -> dict[str, Any]:
    """Put a value into nested dicts, by the dotted path of its key."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def nested_all(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the values that are not ``None`` into nested dicts, by the dotted paths of their keys."""
    return reduce(merge, (nested(k, x) for k, x in values.items() if x is not None), {})
