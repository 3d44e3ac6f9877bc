"""The cells of a study: the config of each of its trainings."""

import glob
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
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
from offrl.outputs import slug
from offrl.registry import shown
from offrl.reports.run import task_of
from offrl.robomimic.configs import upgrade_config
from offrl.studies.config import ConfigEntry, DatasetEntry, StudyConfig
from offrl.tree import merge, short_key

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
    #: robomimic's notes, but for seeds.
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
    combinations = (
        (data, entry, values, seed)
        for data, entry, values in itertools.product(every_data, named_configs(study, beside), grid)
        for seed in study.seeds or [entry.seed]
    )
    for data, entry, values, seed in combinations:
        best = (found or {}).get(entry.name, Found())
        settings = [study.set, entry.set, best.settings, data.set if data else {}, values]
        parts = [entry.folder, called(data)]
        parts += [f"{short_key(key, values)}_{_text(value)}" for key, value in values.items()]
        name = slug("-".join(filter(None, [*parts, f"seed_{seed}"])))
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
    data = search.dataset
    settings = [study.set, entry.set, data.set if data else {}, search.set, values]
    name = f"search/{slug(config)}-trial_{number}"
    return _cell(name, entry, data, search.seed, settings, study.output, beside, values)


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

    name: str  #: Also of those of one scan of robomimic's, which their settings tell apart.
    folder: str  #: What the folders of its cells begin with.
    set: Mapping[str, Any]
    content: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    @property
    def base(self) -> str:
        """The file that a scan of robomimic's varies, if this is of one."""
        base = _section(self.content, "meta").get("hp_base_config_file")
        return base if isinstance(base, str) else ""

    @property
    def scanned(self) -> dict[str, Any]:
        """Give what a scan of robomimic's notes of the values that it chose."""
        noted = _section(self.content, "meta")
        keys, chosen = noted.get("hp_keys"), noted.get("hp_values")
        if not (isinstance(keys, list) and isinstance(chosen, list)):
            return {}
        return {k: v for k, v in zip(keys, chosen, strict=False) if isinstance(k, str)}

    @property
    def seed(self) -> int:
        seed = _section(self.content, "train").get("seed")
        return seed if isinstance(seed, int) else 1


def named_configs(study: StudyConfig, beside: Path) -> Iterator[_Named]:
    """The configs of a study. ``ValueError`` for files of one entry that differ in their seeds,
    where a study would train them all with its own."""
    for entry in study.configs:
        files = [entry.config]
        if "*" in entry.config:
            own = sorted(glob.glob(entry.config, root_dir=beside))
            files = own or shipped_configs(entry.config)
            if not files:
                raise FileNotFoundError(
                    f"configs: no file matches {shown(entry.config)} beside the study or among the "
                    "configs that ship"
                )
        found = [_named(file, entry, beside) for file in files]
        bases = [Path(named.base).stem for named in found]
        found = [  # robomimic writes a scan beside the file that it varies
            named
            for i, named in enumerate(found)
            if named.folder not in (*bases[:i], *bases[i + 1 :])
        ]
        seeds = {named.seed for named in found if named.content}
        is_scanned = any(_is_seed(key) for named in found for key in named.scanned)
        if study.seeds and (len(seeds) > 1 or is_scanned):
            raise ValueError(
                f"configs: the files {entry.config} differ in train.seed; leave out the seeds of "
                "the study, or name one file for all of them"
            )
        yield from found


def _named(file: str, entry: ConfigEntry, beside: Path) -> _Named:
    folder = entry.name or Path(file).stem
    try:
        named = _Named(folder, folder, entry.set, read_config_file(find_config(file, beside)))
    except (ValueError, OSError) as error:
        return _Named(folder, folder, entry.set, problem=str(error))
    return replace(named, name=entry.name or Path(named.base).stem or folder)


def _section(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = content.get(key)
    return section if isinstance(section, Mapping) else {}


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


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
    varied = {k: v for k, v in entry.scanned.items() if not _is_seed(k)} | dict(values)
    cell = Cell(name, entry.name, called(data), seed, returns, varied, problem=entry.problem)
    if entry.problem:
        return cell
    try:
        content = merge(DEFAULTS, upgrade_config(entry.content))
        for key, value in (item for setting in settings for item in setting.items()):
            content = merge(content, nested(key, value))
        train: dict[str, Any] = {"output_dir": output, "seed": seed}
        if data is not None:
            path, options = str(data_path(data, beside)), _section(content, "train").get("data")
            train["data"] = [{**options, "path": path}] if isinstance(options, Mapping) else path
        content = merge(content, {"experiment": {"name": name}, "train": train})
        return replace(cell, dataset=cell.dataset or task_of(content), content=content)
    except (ValueError, OSError) as error:
        return replace(cell, problem=str(error))


def called(data: DatasetEntry | None) -> str:
    """The name of a dataset."""
    return data.name or Path(data.path).stem if data else ""


def data_path(data: DatasetEntry, beside: Path) -> Path:
    """Say where a dataset is, seen from the working folder if it is in there, or will be, if
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
