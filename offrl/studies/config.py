"""The content of a study file: trainings for a grid of configs, datasets, settings and seeds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from offrl.config.build import validated
from offrl.config.files import read_file
from offrl.config.section import Bounds, Count, FreeMap, Map, Section
from offrl.registry import shown
from offrl.tree import leaves

# Keys that a study sets itself.
OWN = {
    "train.seed": "name seeds in the study",
    "train.output_dir": "name output in the study",
    "experiment.name": "a cell is called after its config, data and values; name those",
}

Values = Annotated[list[Any], Field(min_length=1)]


class Entry(Section):
    """An entry of a list in a study file. A plain text is the value of its ``KEY``."""

    KEY: ClassVar[str] = ""

    name: str | None = None
    """Its name in the study. null: the name of the file."""
    set: FreeMap = Map()
    """Settings of its cells, by the dotted paths of their keys."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return {cls.KEY: value} if isinstance(value, str) else value


class ConfigEntry(Entry):
    KEY = "config"

    config: str
    """A config file: beside the study file, else one that ships. Each match of a * is an entry."""

    @model_validator(mode="after")
    def _check_name(self) -> "ConfigEntry":
        if self.name and "*" in self.config:
            raise ValueError(f"name: {shown(self.config)} may be several, which their files name")
        return self


class DatasetEntry(Entry):
    KEY = "path"

    path: str
    """The file: beside the study file, else from the working folder."""
    collect: str | None = None
    """Arguments of offrl collect that make a missing file, such as --env PickPlaceCan --n 200."""
    returns: Bounds | None = None
    """Returns that count as 0 and as 100, such as of a random policy and an expert. null: as is."""

    @property
    def called(self) -> str:
        """The name of the dataset in the study."""
        return self.name or Path(self.path).stem


class Range(Section):
    low: int | float
    """The smallest value."""
    high: int | float
    """The largest value. Of two whole numbers: whole ones."""
    log: bool = False
    """Search in powers."""

    @model_validator(mode="after")
    def _check_order(self) -> "Range":
        if not self.low < self.high:
            raise ValueError(f"low ({self.low}) is not below high ({self.high})")
        if self.log and self.low <= 0:
            raise ValueError(f"low ({self.low}) has no logarithm")
        return self


def _kind_of(value: Any) -> str:
    return "range" if isinstance(value, (dict, Range)) else "values"


Space = Annotated[
    Annotated[Values, Tag("values")] | Annotated[Range, Tag("range")], Discriminator(_kind_of)
]


class SearchConfig(Section):
    dataset: DatasetEntry | None = None
    """The data to search on: best of another task than those of the study. null: that of each
    config, or the environment that it acts in; set names another one."""
    trials: Count = 20
    """Trainings for each config."""
    seed: int = Field(1, ge=0)
    """Seed of the search and of its trainings."""
    set: FreeMap = Map()
    """Settings of its trainings."""
    space: dict[str, dict[str, Space]]
    """By the name of a config, the keys that are searched: a list of values, or low and high."""


class StudyConfig(Section):
    """The content of a study file."""

    name: str = "study"
    """Name of the study."""
    output: str
    """Folder of its run folders and of study.csv."""
    configs: Annotated[list[ConfigEntry], Field(min_length=1)]
    """The configs that are trained."""
    datasets: list[DatasetEntry] = []
    """The data that each of them is trained on. Empty: the data that the config says."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    """The seeds of each training (train.seed). null: those of the configs."""
    set: FreeMap = Map()
    """Settings of every cell."""
    grid: dict[str, Values] = {}
    """Keys and the values that they take; each combination makes a cell."""
    num_threads: Count = 1
    """Threads that each training computes with. The bits depend on it."""
    search: SearchConfig | None = None
    """A search for the best settings before the study, with Optuna."""

    @field_validator("name", "output")
    @classmethod
    def _check_text(cls, text: str) -> str:
        if not (text.strip() and text.isprintable()):
            raise ValueError(f"{shown(text)} is no name")
        return text

    @model_validator(mode="after")
    def _check_settings(self) -> "StudyConfig":
        search = self.search
        parts: dict[str, Mapping[str, Any]] = {"set": self.set, "grid": self.grid}
        parts |= {f"configs.{i}.set": entry.set for i, entry in enumerate(self.configs)}
        parts |= {f"datasets.{i}.set": entry.set for i, entry in enumerate(self.datasets)}
        if search:
            parts["search.set"] = search.set
            parts["search.dataset.set"] = search.dataset.set if search.dataset else {}
            parts |= {f"search.space.{name}": keys for name, keys in search.space.items()}
        for part, keys in parts.items():
            for key in leaves(keys):
                if key in OWN:
                    raise ValueError(f"{part}.{key}: {OWN[key]}")
                if key == "train.data" and self.datasets:
                    raise ValueError(f"{part}.{key}: name all data in datasets")
        return self


def read_study(path: str | Path) -> StudyConfig:
    """Read a study file, YAML or JSON. ``ValueError`` names what is wrong by its dotted path."""
    content = read_file(path)
    try:
        if not isinstance(content, dict):
            raise ValueError("a study is a map with the keys output and configs")
        if "algo_name" in content:
            raise ValueError("this is the config of one training, which offrl train takes")
        known: dict[str, Any] = dict.fromkeys(StudyConfig.model_fields)
        for key, entry in (("configs", ConfigEntry), ("datasets", DatasetEntry)):
            number = len(content[key]) if isinstance(content.get(key), list) else 0
            known[key] = {str(i): dict.fromkeys(entry.model_fields) for i in range(number)}
        if "search" in content:
            fields = dict.fromkeys(DatasetEntry.model_fields)
            known["search"] = {**dict.fromkeys(SearchConfig.model_fields), "dataset": fields}
        return validated(StudyConfig, content, known)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
