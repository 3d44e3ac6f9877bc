"""A study: trainings for a grid of configs, datasets, settings and seeds (``offrl study``)."""

import glob
import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from offrl.config.build import validated
from offrl.config.files import find_config, find_file, nested, read_config_file, read_file
from offrl.config.section import Bounds, Count, FreeMap, Map, Section
from offrl.registry import shown
from offrl.robomimic.configs import upgrade_config
from offrl.tree import leaves, merge

LONGEST = 120  # bytes of a cell's name
# What a training in a study does otherwise than one alone, where nothing says how: as many as there
# are cores run side by side, and share the simulators' time. That a file is offrl's is known before
# the study adds keys to it.
DEFAULTS = {"experiment": {"rollout": {"num_workers": 1}}, "train": {"mask_padded_steps": True}}

# What a study says of its cells itself.
OWN = {
    "train.seed": "name seeds in the study",
    "train.output_dir": "name output in the study",
    "experiment.name": "a cell is called after its config, data and values; name those",
}

Values = Annotated[list[Any], Field(min_length=1)]


class ConfigEntry(Section):
    config: str = Field(
        description="A config file: beside the study file, or one that ships with offrl. Several "
        "with a * in the name are one entry each."
    )
    name: str | None = Field(None, description="What it is called. null: as the file is.")
    set: FreeMap = Field(
        Map(), description="Settings of its cells, by the dotted paths of their keys."
    )

    @model_validator(mode="after")
    def _is_one(self) -> "ConfigEntry":
        if self.name and "*" in self.config:
            raise ValueError(f"name: {shown(self.config)} may be several, which their files name")
        return self


class DatasetEntry(Section):
    path: str = Field(description="The file: beside the study file, else from the working folder.")
    name: str | None = Field(None, description="What it is called. null: as the file is.")
    collect: str | None = Field(
        None,
        description="Arguments of offrl collect that make the file where it is missing, for "
        "example --env PickPlaceCan --n 200 --noise 0.1.",
    )
    set: FreeMap = Field(Map(), description="Settings of the cells that train on it.")
    returns: Bounds | None = Field(
        None,
        description="The returns that reports count as 0 and as 100, such as those of a random "
        "policy and of an expert. null: returns as they are.",
    )


class Range(Section):
    low: int | float = Field(description="The smallest value.")
    high: int | float = Field(description="The largest value. Of two whole numbers: whole ones.")
    log: bool = Field(False, description="Search in powers.")

    @model_validator(mode="after")
    def _is_range(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) is not below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low}) has no logarithm")
        return self


def _is_range(value: Any) -> str:
    return "range" if isinstance(value, (dict, Range)) else "values"


Space = Annotated[
    Annotated[Values, Tag("values")] | Annotated[Range, Tag("range")], Discriminator(_is_range)
]


class SearchConfig(Section):
    dataset: Annotated[DatasetEntry, BeforeValidator(lambda x: _entry(x, "path"))] = Field(
        description="The data to search on: best of another task than those of the study."
    )
    trials: Count = Field(20, description="Trainings for each config.")
    seed: int = Field(1, ge=0, description="Seed of the search and of its trainings.")
    set: FreeMap = Field(Map(), description="Settings of its trainings.")
    space: dict[str, dict[str, Space]] = Field(
        description="For each config, by its name, the keys that are searched: a list of values, "
        "or low and high."
    )


class StudyConfig(Section):
    """The content of a study file."""

    name: str = Field("study", description="Name of the study.")
    output: str = Field(description="Folder of its run folders and of study.csv.")
    configs: list[Annotated[ConfigEntry, BeforeValidator(lambda x: _entry(x, "config"))]] = Field(
        min_length=1, description="What is trained."
    )
    datasets: list[Annotated[DatasetEntry, BeforeValidator(lambda x: _entry(x, "path"))]] = Field(
        [], description="What each of them is trained on. Empty: what the config says."
    )
    seeds: list[Annotated[int, Field(ge=0)]] = Field(
        [1], min_length=1, description="The seeds of each training (train.seed)."
    )
    set: FreeMap = Field(Map(), description="Settings of every cell.")
    grid: dict[str, Values] = Field(
        {}, description="Keys and the values that they take; each combination makes a cell."
    )
    num_threads: Count = Field(
        1, description="Threads that each training computes with. The bits depend on it."
    )
    search: SearchConfig | None = Field(
        None, description="A search for the best settings before the study, with Optuna."
    )

    @field_validator("name", "output")
    @classmethod
    def _is_said(cls, text: str) -> str:
        if not (text.strip() and text.isprintable()):
            raise ValueError(f"{shown(text)} is no name")
        return text

    @model_validator(mode="after")
    def _leaves_seeds_and_names(self) -> "StudyConfig":
        search = self.search
        parts: dict[str, Mapping[str, Any]] = {"set": self.set, "grid": self.grid}
        parts |= {f"configs.{i}.set": entry.set for i, entry in enumerate(self.configs)}
        parts |= {f"datasets.{i}.set": entry.set for i, entry in enumerate(self.datasets)}
        if search:
            parts |= {"search.set": search.set, "search.dataset.set": search.dataset.set}
            parts |= {f"search.space.{name}": keys for name, keys in search.space.items()}
        for part, keys in parts.items():
            for key in leaves(keys):
                if key in OWN:
                    raise ValueError(f"{part}.{key}: {OWN[key]}")
                if key == "train.data" and self.datasets:
                    raise ValueError(f"{part}.{key}: name all data in datasets")
        return self


def _entry(value: Any, key: str) -> Any:
    """A name alone stands for an entry with nothing else."""
    return {key: value} if isinstance(value, str) else value


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
    content: Mapping[str, Any] = field(default_factory=dict)  #: Of its config.
    problem: str = ""  #: Why it cannot be trained.


def read_study(path: str | Path) -> StudyConfig:
    """The study in a YAML or JSON file. ``ValueError`` names what is wrong by its dotted path."""
    content = read_file(path)
    try:
        if not isinstance(content, dict):
            raise ValueError("a study is a map with the keys output and configs")
        if "algo_name" in content:
            raise ValueError("this is the config of one training, which offrl train takes")
        return validated(StudyConfig, content, dict.fromkeys(StudyConfig.model_fields))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def cells_of(
    study: StudyConfig, beside: Path, found: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Cell]:
    """The cells of a study, each once, whose file is in the folder ``beside``.

    found: for each config, by its name, the settings that a search has found.
    """
    cells: dict[str, Cell] = {}
    every_data: list[DatasetEntry | None] = [*study.datasets] or [None]
    grid = [dict(zip(study.grid, x, strict=True)) for x in itertools.product(*study.grid.values())]
    for data, entry, values, seed in itertools.product(
        every_data, named_configs(study, beside), grid, study.seeds
    ):
        settings = [study.set, entry.set, (found or {}).get(entry.name, {})]
        settings += [data.set if data else {}, values]
        parts = [entry.name, _called(data)]
        parts += [f"{short_key(key, values)}_{_text(value)}" for key, value in values.items()]
        name = _slug("-".join(filter(None, [*parts, f"seed_{seed}"])))
        cell = _cell(name, entry, data, seed, settings, study.output, beside, values)
        if study.search and entry.name in study.search.space and entry.name not in (found or {}):
            why = f"no training of its search came to its end, see {study.output}/search"
            cell = replace(cell, problem=cell.problem or why)
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
            files = own or sorted(glob.glob(entry.config))
            if not files:
                raise FileNotFoundError(f"configs: no file matches {shown(entry.config)}")
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
    cell = Cell(name, entry.name, _called(data), seed, returns, values, problem=entry.problem)
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


def _called(data: DatasetEntry | None) -> str:
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
            raise FileNotFoundError(f"{error}, nor beside the study ({own.resolve()})") from None
    here = Path.cwd().resolve()
    return found.relative_to(here) if found.is_relative_to(here) else found


def short_key(key: str, others: Iterable[str]) -> str:
    """The last part of a key, or all of it where another one ends so."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in others) == 1 else key


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _slug(name: str) -> str:
    """A name for a folder; what is lost of a name is told by a digest."""
    slug = re.sub(r"[^\w.+=-]+", "_", name).strip("._")
    if slug == name and len(slug.encode()) <= LONGEST:
        return slug
    short = slug.encode()[:LONGEST].decode(errors="ignore")
    return f"{short}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
