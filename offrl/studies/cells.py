"""The cells of a study: the config of each of its trainings."""

import glob
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from offrl.config.files import find_config, find_file, nested, read_config_file, shipped_configs
from offrl.outputs import slug
from offrl.registry import shown
from offrl.reports.run import task_of
from offrl.robomimic.configs import upgrade_config
from offrl.studies.config import ConfigEntry, DatasetEntry, StudyConfig
from offrl.tree import merge, short_key

# Defaults of trainings in a study that differ from those of single ones: as many as there are cores
# run side by side, and share the simulators' time. Whether a file is robomimic's is decided before
# the study adds keys to it.
DEFAULTS = {"experiment": {"rollout": {"num_workers": 1}}, "train": {"mask_padded_steps": True}}


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    name: str  #: The name of its folder below the study's.
    config: str  #: The name of the config.
    dataset: str  #: The name of the data.
    seed: int
    returns: Sequence[float] = ()  #: The returns on its task that count as 0 and as 100.
    #: The settings that distinguish it from others of its config: values of the grid and of a
    #: robomimic scan, except seeds.
    settings: Mapping[str, Any] = field(default_factory=dict)
    search: str = ""  #: The settings that a search has found, as text.
    content: Mapping[str, Any] = field(default_factory=dict)  #: The content of its config.
    problem: str = ""  #: The reason why it cannot be trained.


@dataclass(frozen=True)
class SearchResult:
    """The result of the search for the best settings of a config."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    problem: str = ""  #: The reason why there are no settings.


@dataclass(frozen=True)
class StudiedConfig:
    """A config of a study: one file of an entry, or the problem with that."""

    name: str  #: Configs of one robomimic scan share it; their settings differ.
    folder: str  #: The beginning of the names of its cells' folders.
    set: Mapping[str, Any]
    content: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    base: str = ""  #: The file that a robomimic scan varies, if any.
    scanned: Mapping[str, Any] = field(default_factory=dict)  #: The scan's values.
    problem: str = ""


class Plan:
    """The trainings of a study.

    beside: the folder of the study's file, in which its configs and data are found.

    Raises ``ValueError`` if files of one entry have different seeds, and the study has its own.
    """

    def __init__(self, study: StudyConfig, beside: Path):
        self.study, self.beside = study, beside
        self.configs = [config for entry in study.configs for config in self._configs(entry)]
        named: dict[str, StudiedConfig] = {}
        for config in self.configs:
            named.setdefault(config.name, config)
        space = study.search.space if study.search else {}
        if strange := [name for name in space if name not in named]:
            known = ", ".join(named)
            raise ValueError(f"search.space.{strange[0]}: no such config; there are {known}")
        #: The configs with a search, by their names.
        self.searched = {name: config for name, config in named.items() if name in space}

    def cells(self, found: Mapping[str, SearchResult] | None = None) -> list[Cell]:
        """List the cells, each once, with ``found``, the search's result for each config by its
        name."""
        study = self.study
        cells: dict[str, Cell] = {}
        every_data: list[DatasetEntry | None] = [*study.datasets] or [None]
        for data, config, values in itertools.product(
            every_data, self.configs, itertools.product(*study.grid.values())
        ):
            varied = dict(zip(study.grid, values, strict=True))
            best = (found or {}).get(config.name, SearchResult())
            settings = [study.set, config.set, best.settings, data.set if data else {}, varied]
            parts = [config.folder, data.called if data else ""]
            parts += [f"{short_key(key, varied)}_{_text(x)}" for key, x in varied.items()]
            for seed in study.seeds or [config.seed]:
                name = slug("-".join(filter(None, [*parts, f"seed_{seed}"])))
                cell = self._cell(name, config, data, seed, settings, varied)
                cell = replace(cell, search=best.words, problem=cell.problem or best.problem)
                if cells.setdefault(name, cell).content != cell.content:
                    raise ValueError(
                        f"two cells are called {name}; give their configs or datasets names (name)"
                    )
        return list(cells.values())

    def trial(self, config: StudiedConfig, number: int, values: Mapping[str, Any]) -> Cell:
        """Make the cell of a trial in the search for a config."""
        study, search = self.study, self.study.search
        assert search is not None
        data = search.dataset
        settings = [study.set, config.set, data.set if data else {}, search.set, values]
        name = f"search/{slug(config.name)}-trial_{number}"
        return self._cell(name, config, data, search.seed, settings, values)

    def _configs(self, entry: ConfigEntry) -> list[StudiedConfig]:
        files = [entry.config]
        if "*" in entry.config:
            own = sorted(glob.glob(entry.config, root_dir=self.beside))
            files = own or shipped_configs(entry.config)
            if not files:
                raise FileNotFoundError(
                    f"configs: no file matches {shown(entry.config)}, beside the study or shipped"
                )
        found = [_read(file, entry, self.beside) for file in files]
        # robomimic writes scans beside the file that they vary.
        bases = {config.base for config in found if config.base != config.folder}
        found = [config for config in found if config.folder not in bases]
        seeds = {config.seed for config in found if config.content}
        is_scanned = any(_is_seed(key) for config in found for key in config.scanned)
        if self.study.seeds and (len(seeds) > 1 or is_scanned):
            raise ValueError(
                f"configs: the files {entry.config} differ in train.seed; leave out the seeds of "
                "the study, or name one file for all of them"
            )
        return found

    def _cell(
        self,
        name: str,
        config: StudiedConfig,
        data: DatasetEntry | None,
        seed: int,
        settings: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
    ) -> Cell:
        """Make a cell of a config and ``settings``, or one with its ``problem``."""
        returns = (data.returns if data else None) or ()
        varied = {k: v for k, v in config.scanned.items() if not _is_seed(k)} | dict(values)
        dataset = data.called if data else ""
        cell = Cell(name, config.name, dataset, seed, returns, varied, problem=config.problem)
        if config.problem:
            return cell
        try:
            content = merge(DEFAULTS, upgrade_config(config.content))
            for key, value in (item for setting in settings for item in setting.items()):
                content = merge(content, nested(key, value))
            train: dict[str, Any] = {"output_dir": self.study.output, "seed": seed}
            if data is not None:
                path = str(data_path(data, self.beside))
                options = _section(content, "train").get("data")
                train["data"] = [{**options, "path": path}] if isinstance(options, dict) else path
            content = merge(content, {"experiment": {"name": name}, "train": train})
            return replace(cell, dataset=dataset or task_of(content), content=content)
        except (ValueError, OSError) as error:
            return replace(cell, problem=str(error))


def _read(file: str, entry: ConfigEntry, beside: Path) -> StudiedConfig:
    folder = entry.name or Path(file).stem
    try:
        content = read_config_file(find_config(file, beside))
    except (ValueError, OSError) as error:
        return StudiedConfig(folder, folder, entry.set, problem=str(error))
    seed, meta = _section(content, "train").get("seed"), _section(content, "meta")
    known: list[Any] = [meta.get(f"hp_{key}") for key in ("base_config_file", "keys", "values")]
    base, keys, chosen = known
    base = Path(base).stem if isinstance(base, str) else ""
    is_scan = isinstance(keys, list) and isinstance(chosen, list)
    pairs: Iterable[tuple[Any, Any]] = zip(keys, chosen, strict=False) if is_scan else ()
    return StudiedConfig(
        name=entry.name or base or folder,
        folder=folder,
        set=entry.set,
        content=content,
        seed=seed if isinstance(seed, int) else 1,
        base=base,
        scanned={key: value for key, value in pairs if isinstance(key, str)},
    )


def _section(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = content.get(key)
    return section if isinstance(section, Mapping) else {}


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def data_path(data: DatasetEntry, beside: Path) -> Path:
    """Return the path of a dataset, or of one to ``collect``, from the working folder."""
    given = Path(data.path).expanduser()
    own = beside / given
    if re.match(r"\w+:", data.path):  # a name and no path, such as one of Minari's
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
