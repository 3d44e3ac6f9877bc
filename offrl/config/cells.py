"""The cells of a study: the config of each of its trainings."""

import glob
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from offrl.config.files import (
    find_config,
    find_file,
    nested,
    read_config_file,
    shipped_configs,
)
from offrl.config.study import ConfigEntry, DatasetEntry, StudyConfig
from offrl.registry import shown
from offrl.robomimic.configs import upgrade_config
from offrl.tree import merge

NAMELESS = ("initial", "enabled")  # keys that say nothing without the one above
LONGEST = 120  # bytes of a cell's name
# What a training in a study does otherwise than one alone, where nothing says how: as many as there
# are cores run side by side, and share the simulators' time. That a file is offrl's is known before
# the study adds keys to it.
DEFAULTS = {"experiment": {"rollout": {"num_workers": 1}}, "train": {"mask_padded_steps": True}}


@dataclass(frozen=True)
class Cell:
    """A training of a study."""

    name: str  #: Its folder below the study's.
    config: str  #: What the config is called.
    dataset: str  #: What the data is called.
    seed: int
    returns: Sequence[float] = ()  #: The returns on its task that count as 0 and as 100.
    #: What tells it from others of its config: the grid's values, and those that a scan of
    #: robomimic's notes.
    settings: Mapping[str, Any] = field(default_factory=dict)
    search: str = ""  #: What of its settings a search has found, in words.
    content: Mapping[str, Any] = field(default_factory=dict)  #: Of its config.
    problem: str = ""  #: Why it cannot be trained.


@dataclass(frozen=True)
class Found:
    """What came of the search for a config."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    problem: str = ""  #: Why there are no settings.


def cells_of(
    study: StudyConfig, beside: Path, found: Mapping[str, Found] | None = None
) -> list[Cell]:
    """The cells of a study, each once, whose file is in the folder ``beside``.

    found: for each config that was searched for, by its name, what came of it.
    """
    cells: dict[str, Cell] = {}
    every_data: list[DatasetEntry | None] = [*study.datasets] or [None]
    grid = [dict(zip(study.grid, x, strict=True)) for x in itertools.product(*study.grid.values())]
    for data, entry, values, seed in itertools.product(
        every_data, named_configs(study, beside), grid, study.seeds
    ):
        best = (found or {}).get(entry.name, Found())
        settings = [study.set, entry.set, best.settings, data.set if data else {}, values]
        parts = [entry.name, called(data)]
        parts += [f"{short_key(key, values)}_{_text(value)}" for key, value in values.items()]
        name = _slug("-".join(filter(None, [*parts, f"seed_{seed}"])))
        cell = _cell(name, entry, data, seed, settings, study.output, beside, values)
        cell = replace(cell, search=best.words, problem=cell.problem or best.problem)
        if cells.setdefault(name, cell).content != cell.content:
            raise ValueError(
                f"two cells are called {name}; give their configs or datasets names (name)"
            )
    return list(cells.values())


def trial_cell(
    study: StudyConfig, beside: Path, config: str, number: int, values: Mapping[str, Any]
) -> Cell:
    """The training of a trial of the search of a study."""
    search = study.search
    assert search is not None
    entry = next(entry for entry in named_configs(study, beside) if entry.name == config)
    settings = [study.set, entry.set, search.dataset.set, search.set, values]
    name = f"search/{_slug(config)}-trial_{number}"
    data, seed = search.dataset, search.seed
    return _cell(name, entry, data, seed, settings, study.output, beside, values)


def searched(study: StudyConfig, beside: Path) -> list[str]:
    """The names of the configs that are searched for."""
    if study.search is None:
        return []
    names = [entry.name for entry in named_configs(study, beside)]
    for name in study.search.space:
        if name not in names:
            raise ValueError(f"search.space.{name}: no such config; there are {', '.join(names)}")
    return [name for name in names if name in study.search.space]


@dataclass(frozen=True)
class _Named:
    """A config of a study: one file of an entry, or what is wrong with it."""

    name: str
    set: Mapping[str, Any]
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


def named_configs(study: StudyConfig, beside: Path) -> Iterator[_Named]:
    """The configs of a study. ``ValueError`` for files of one entry that differ in their seeds,
    which a study would all train with its own."""
    for entry in study.configs:
        files = [entry.config]
        if "*" in entry.config:
            own = sorted(glob.glob(str(Path(glob.escape(str(beside)), entry.config))))
            files = own or sorted(glob.glob(entry.config)) or shipped_configs(entry.config)
            if not files:
                raise FileNotFoundError(
                    f"configs: no file matches {shown(entry.config)} beside the study, in the "
                    "working folder or among the configs that ship"
                )
        found = [_named(file, entry, beside) for file in files]
        seeds = {json.dumps(_seed(named.content)) for named in found if named.content}
        if len(seeds) > 1:
            raise ValueError(
                f"configs: the files {entry.config} differ in train.seed; name seeds in the study, "
                "and one file for all of them"
            )
        yield from found


def _named(file: str, entry: ConfigEntry, beside: Path) -> _Named:
    name, own = entry.name or Path(file).stem, beside / file
    try:
        content = read_config_file(own if own.is_file() else find_config(file))
        return _Named(name, entry.set, content)
    except (ValueError, OSError) as error:
        return _Named(name, entry.set, problem=str(error))


def _seed(content: Mapping[str, Any]) -> Any:
    train = content.get("train")
    return train.get("seed") if isinstance(train, Mapping) else None


def _cell(
    name: str,
    entry: _Named,
    data: DatasetEntry | None,
    seed: int,
    settings: Sequence[Mapping[str, Any]],
    output: str,
    beside: Path,
    values: Mapping[str, Any],
) -> Cell:
    """A cell whose config is that of the file with ``settings`` laid over it, or what is wrong with
    it."""
    returns = (data.returns if data else None) or ()
    cell = Cell(name, entry.name, called(data), seed, returns, values, problem=entry.problem)
    if entry.problem:
        return cell
    try:
        scanned = _scanned(entry.content)
        content = merge(DEFAULTS, upgrade_config(entry.content))
        for key, value in (item for setting in settings for item in setting.items()):
            content = merge(content, nested(key, value))
        train: dict[str, Any] = {"output_dir": output, "seed": seed}
        if data is not None:
            path, section = str(data_path(data, beside)), content.get("train")
            options = section.get("data") if isinstance(section, Mapping) else None
            train["data"] = [{**options, "path": path}] if isinstance(options, Mapping) else path
        content = merge(content, {"experiment": {"name": name}, "train": train})
        return replace(cell, settings={**scanned, **values}, content=content)
    except (ValueError, OSError) as error:
        return replace(cell, problem=str(error))


def _scanned(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a scan of robomimic's notes of the values that it chose."""
    noted = content.get("meta")
    keys, chosen = (
        noted.get(key) if isinstance(noted, Mapping) else None for key in ("hp_keys", "hp_values")
    )
    if not (isinstance(keys, list) and isinstance(chosen, list)):
        return {}
    return {key: value for key, value in zip(keys, chosen, strict=False) if isinstance(key, str)}


def called(data: DatasetEntry | None) -> str:
    """The name of a dataset."""
    return data.name or Path(data.path).stem if data else ""


def data_path(data: DatasetEntry, beside: Path) -> Path:
    """Where a dataset is, seen from the working folder if it is in there, or will be, if
    ``collect`` makes it."""
    given = Path(data.path).expanduser()
    own = beside / given
    if re.match(r"\w+:", data.path):  # no path, but a name, such as one of Minari's
        return Path(data.path)
    if data.collect is not None or own.exists():
        found = own.resolve()
    elif given.is_dir():  # such as one of Minari's
        found = given.resolve()
    else:
        try:
            found = find_file(data.path)
        except FileNotFoundError as error:
            if given.resolve() == own.resolve():
                raise
            raise FileNotFoundError(f"{error}, nor beside the study ({own.resolve()})") from None
    here = Path.cwd().resolve()
    return found.relative_to(here) if found.is_relative_to(here) else found


def short_key(key: str, others: Iterable[str]) -> str:
    """The end of a key that tells it from the others, and says of what it is."""
    others = [f".{other}" for other in others if other != key]
    parts = key.split(".")
    ends = [".".join(parts[i:]) for i in reversed(range(len(parts))) if parts[i] not in NAMELESS]
    return next((e for e in ends if not any(x.endswith(f".{e}") for x in others)), key)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slug(name: str) -> str:
    """A name for a folder; what is lost of a name is told by a digest."""
    slug = re.sub(r"[^\w.+=-]+", "_", name).strip("._")
    if slug == name and len(slug.encode()) <= LONGEST:
        return slug
    short = slug.encode()[:LONGEST].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
