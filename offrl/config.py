"""Typed configs with robomimic's sections, key names and defaults.

``config_factory("bc", {"train": {"batch_size": 256}})`` gives the defaults of an algorithm with
overrides laid over them. Every key is checked: a wrong type, an unknown key or contradictory
switches raise ``ValueError`` naming the dotted path, what is allowed and the nearest known key.
A config knows no behaviour.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from offrl.compat import upgrade_config
from offrl.registry import ALGO_CONFIGS
from offrl.section import Bounds, Count, FreeMap, KeyLists, Map, Section
from offrl.tree import merge


class LoggingConfig(Section):
    terminal_output_to_txt: bool = True
    log_tb: bool = True
    log_wandb: bool = False
    wandb_proj_name: str = "debug"


class SaveConfig(Section):
    """Which epochs keep a checkpoint in ``models/``; ``last.pth`` is written whenever enabled."""

    enabled: bool = True
    every_n_seconds: float | None = None
    every_n_epochs: Count | None = 50
    epochs: list[int] = []
    on_best_validation: bool = False
    on_best_rollout_return: bool = False
    on_best_rollout_success_rate: bool = True


class RolloutConfig(Section):
    """Evaluation in the simulator every ``rate`` epochs, after ``warmstart`` of them."""

    enabled: bool = True
    n: Count = 50
    horizon: Count = 400
    rate: Count = 50
    warmstart: int = 0
    terminate_on_success: bool = True
    # The rest is offrl's own.
    num_workers: Count | None = None  # simulator processes; None: one per core
    timeout: float = Field(300.0, gt=0)  # seconds of silence before a simulator counts as hung
    video_episodes: int = Field(3, ge=0)  # how many episodes the video shows


class ProxiesConfig(Section):
    """Evaluation without an environment every ``rate`` epochs, on the held-out demonstrations with
    ``validate``; offrl's own."""

    enabled: bool = False
    rate: Count = 1
    fqe_steps: int = Field(0, ge=0)  # of fitted Q evaluation, anew each time; 0: none


with warnings.catch_warnings():
    # robomimic's key `validate` shadows a long-deprecated method of pydantic's.
    warnings.filterwarnings("ignore", message='Field name "validate"')

    class ExperimentConfig(Section):
        name: str = "test"  # the run's folder below train.output_dir
        validate: bool = False  # type: ignore[assignment]
        logging: LoggingConfig = LoggingConfig()
        save: SaveConfig = SaveConfig()
        epoch_every_n_steps: Count | None = 100  # None: one pass over the data
        validation_epoch_every_n_steps: Count | None = 10
        env: str | None = None  # evaluate in this environment instead of the dataset's
        additional_envs: list[str] | None = None
        render: bool = False
        render_video: bool = True
        keep_all_videos: bool = False
        video_skip: Count = 5
        rollout: RolloutConfig = RolloutConfig()
        proxies: ProxiesConfig = ProxiesConfig()
        env_meta_update_dict: FreeMap = {}
        ckpt_path: str | None = None  # start from these weights

        @field_validator("name")
        @classmethod
        def _stays_inside(cls, name: str) -> str:
            if not name or Path(name).is_absolute() or ".." in Path(name).parts:
                raise ValueError(f"{name!r} is no name of a folder below train.output_dir")
            return name


# -- train ----------------------------------------------------------------------------------------


class DatasetConfig(Section):
    path: str
    filter_key: str | None = None
    demo_limit: Count | None = None
    # offrl's own: of its demonstrations, use this share with the highest returns (filtered BC).
    top_share: float | None = Field(None, gt=0, le=1)
    weight: float = Field(1.0, gt=0)  # of each of its windows, see normalize_weights_by_ds_size
    eval: bool = True  # evaluate in its environment
    key: str | None = None  # name of its environment in the logs, instead of the task's
    lang: str | None = None


class ActionConfig(Section):
    normalization: Literal["min_max", "gaussian"] | None = None
    # A rotation in six numbers is turned into `convert_at_runtime` when acting; others pass.
    # offrl's own: "discrete", an integer from 0 on.
    format: Literal["rot_6d", "rot_axis_angle", "rot_euler", "discrete"] | None = None
    convert_at_runtime: Literal["rot_axis_angle", "rot_euler"] = "rot_axis_angle"
    num_actions: Count | None = None  # discrete ones; None: those up to the largest in the data

    @model_validator(mode="after")
    def _agrees(self) -> ActionConfig:
        is_discrete = self.format == "discrete"
        if is_discrete and self.normalization:
            raise ValueError("discrete actions are not normalised; set normalization to null")
        if self.num_actions and not is_discrete:
            raise ValueError('num_actions is of discrete actions; set format to "discrete"')
        return self


class RewardsConfig(Section):
    """``scale * normalised(clipped(r)) + shift``, in training; offrl's own."""

    # Between the ends of `clip`, by the data's extremes, deviation or range of returns.
    clip: Bounds | None = None
    normalization: Literal["min_max", "gaussian", "return"] | None = None
    scale: float = Field(1.0, gt=0)
    shift: float = 0.0


class TrainConfig(Section):
    data: list[DatasetConfig] | None = None  # a path, or a list of {path, ...}
    output_dir: str = "runs"
    normalize_weights_by_ds_size: bool = False  # weights are of datasets, whatever their sizes
    num_data_workers: int = Field(0, ge=0)
    hdf5_cache_mode: Literal["all", "low_dim"] | None = "all"
    hdf5_use_swmr: bool = True
    hdf5_load_next_obs: bool = False
    hdf5_normalize_obs: bool = False
    hdf5_filter_key: str | None = None
    hdf5_validation_filter_key: str | None = None
    seq_length: Count = 1
    pad_seq_length: bool = True
    frame_stack: Count = 1
    pad_frame_stack: bool = True
    dataset_keys: list[str] = ["actions", "rewards", "dones"]
    action_keys: Annotated[list[str], Field(min_length=1)] = ["actions"]
    action_config: dict[str, ActionConfig] = {"actions": ActionConfig()}
    rewards: RewardsConfig = RewardsConfig()
    goal_mode: Literal["last"] | None = None
    cuda: bool = True
    batch_size: Count = 100
    num_epochs: Count = 2000
    seed: int = Field(1, ge=0)
    max_grad_norm: float | None = Field(None, gt=0)
    # offrl's own: padded steps count for nothing; robomimic trains on them.
    mask_padded_steps: bool = True

    @property
    def acts_discretely(self) -> bool:
        config = self.action_config
        return any(key in config and config[key].format == "discrete" for key in self.action_keys)

    @field_validator("data", mode="before")
    @classmethod
    def _path_to_list(cls, data: Any) -> Any:
        entries = [data] if isinstance(data, (str, Path, dict)) else data
        if not isinstance(entries, (list, tuple)):
            return entries
        return [{"path": str(e)} if isinstance(e, (str, Path)) else e for e in entries]


class LearningRateConfig(Section):
    """``multistep``: times ``decay_factor`` at each epoch of ``epoch_schedule``; ``linear``: down
    to ``decay_factor`` at the one epoch named there; ``cosine``: ``warmup_steps`` up, then
    ``num_cycles`` cosine waves over the whole training."""

    initial: float = Field(1e-4, ge=0)
    decay_factor: float = 0.1
    epoch_schedule: list[Count] = []
    scheduler_type: Literal["multistep", "linear", "cosine", "constant"] = "multistep"
    step_every_batch: bool = False  # count steps instead of epochs
    warmup_steps: int = Field(0, ge=0)
    num_cycles: float = 0.5


class RegularizationConfig(Section):
    L2: float = Field(0.0, ge=0)


class OptimConfig(Section):
    optimizer_type: Literal["adam", "adamw"] = "adam"
    learning_rate: LearningRateConfig = LearningRateConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    # robomimic writes these two into the configs of its runs; offrl counts by itself.
    num_train_batches: int | None = None
    num_epochs: int | None = None


class AlgoConfig(Section):
    """Base of every algorithm's ``algo`` section; a subclass registers under its ``ALGO_NAME``.

    ``DEFAULTS`` holds what the algorithm wants different in the other sections, e.g.
    ``{"train": {"batch_size": 1024}}``.
    """

    ALGO_NAME: ClassVar[str] = ""
    DEFAULTS: ClassVar[dict[str, Any]] = {}

    optim_params: dict[str, OptimConfig] = {}  # by the name of the network

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        if "ALGO_NAME" in cls.__dict__:
            ALGO_CONFIGS.register(cls.ALGO_NAME)(cls)


# -- observation ----------------------------------------------------------------------------------


class ModalitiesConfig(Section):
    """Which observation keys a policy sees, by group and modality."""

    obs: KeyLists = Map(
        low_dim=["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"],
        rgb=[],
        depth=[],
        scan=[],
    )
    goal: KeyLists = Map(low_dim=[], rgb=[], depth=[], scan=[])
    subgoal: KeyLists = Map(low_dim=[], rgb=[], depth=[], scan=[])  # what a planner proposes


class EncoderConfig(Section):
    core_class: str | None = None
    core_kwargs: FreeMap = Map()
    obs_randomizer_class: str | list[str] | None = None
    obs_randomizer_kwargs: FreeMap | list[FreeMap] = Map()

    def randomizers(self) -> list[tuple[str, dict[str, Any]]]:
        """Name and arguments of each randomizer, in the order of their use."""
        names, kwargs = self.obs_randomizer_class, self.obs_randomizer_kwargs
        names = names if isinstance(names, list) else [names] if names else []
        kwargs = kwargs if isinstance(kwargs, list) else [kwargs] * len(names)
        if len(kwargs) != len(names):
            raise ValueError(
                f"obs_randomizer_kwargs: {len(kwargs)} maps for {len(names)} randomizers; give "
                "one for each"
            )
        return list(zip(names, kwargs, strict=True))


class ObservationConfig(Section):
    modalities: ModalitiesConfig = ModalitiesConfig()
    encoder: dict[str, EncoderConfig] = {
        "low_dim": EncoderConfig(),
        "rgb": EncoderConfig(core_class="VisualCore"),
        "depth": EncoderConfig(core_class="VisualCore"),
        "scan": EncoderConfig(core_class="ScanCore"),
    }


# -- the whole ------------------------------------------------------------------------------------


class MetaConfig(Section):
    hp_base_config_file: str | None = None
    hp_keys: list[str] = []
    hp_values: list[Any] = []
    provenance: FreeMap = Map()  # written by the Trainer: commit, versions, dataset fingerprint


class Config(Section):
    algo_name: str
    experiment: ExperimentConfig = ExperimentConfig()
    train: TrainConfig = TrainConfig()
    algo: AlgoConfig = AlgoConfig()
    observation: ObservationConfig = ObservationConfig()
    meta: MetaConfig = MetaConfig()


def without_pretrained(config: Config) -> Config:
    """A copy whose image backbones fetch no weights, where others are about to be loaded."""
    config = config.model_copy(deep=True)
    for encoder in config.observation.encoder.values():
        options = encoder.core_kwargs.get("backbone_kwargs") or {}
        backbone = encoder.core_kwargs.get("backbone_class") or ""
        may_fetch = backbone and "." not in backbone  # not one of a user's own
        if may_fetch or options.get("pretrained"):
            encoder.core_kwargs["backbone_kwargs"] = {**options, "pretrained": False}
    return config


def config_factory(algo_name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The defaults of an algorithm with nested ``overrides`` laid over them.

    Raises ``ValueError`` that names every wrong key or value by its dotted path.
    """
    overrides = upgrade_config(overrides or {})
    stated = overrides.get("algo_name", algo_name)
    if stated != algo_name:
        raise ValueError(
            f"algo_name: the config is for {stated!r}, but {algo_name!r} was asked for"
        )
    algo_section = ALGO_CONFIGS[algo_name]
    model = _config_class(algo_section)
    defaults = merge(model(algo_name=algo_name).to_dict(), algo_section.DEFAULTS)
    try:
        return model.model_validate(merge(defaults, overrides))
    except ValidationError as error:
        raise ValueError("; ".join(_explain(e, defaults) for e in error.errors())) from None


@cache
def _config_class(algo_section: type[AlgoConfig]) -> type[Config]:
    return create_model("Config", __base__=Config, algo=(algo_section, algo_section()))


def _explain(error: Any, defaults: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path}: unknown config key.{_nearest(error['loc'], defaults)}"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if error["type"] in ("value_error", "missing"):
        return f"{path}: {message}"
    return f"{path}: {message}, got {error['input']!r}"


def _nearest(location: tuple, defaults: Mapping[str, Any]) -> str:
    """A hint for an unknown key: a sibling that looks alike, or the same name elsewhere."""
    parent: Any = defaults
    for part in location[:-1]:
        parent = parent.get(part, {}) if isinstance(parent, Mapping) else {}
    siblings = list(parent) if isinstance(parent, Mapping) else []
    name = str(location[-1])
    elsewhere = [p for p in _dotted(defaults) if p.rpartition(".")[2] == name]
    close = elsewhere or [
        ".".join([*map(str, location[:-1]), match])
        for match in difflib.get_close_matches(name, siblings, n=1, cutoff=0.5)
    ]
    if close:
        return f" Did you mean {close[0]}?"
    return f" Known here: {', '.join(siblings)}." if siblings else ""


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
