"""The sections ``experiment``, ``train``, ``observation`` and ``meta``, as robomimic has them."""

import os
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from offrl.config.algo import AlgoConfig
from offrl.config.content import shown
from offrl.config.section import Bounds, Count, FreeMap, KeyLists, Map, Section, Steps, only


class LoggingConfig(Section):
    terminal_output_to_txt: bool = True
    log_tb: bool = True
    log_wandb: bool = False
    wandb_proj_name: str = "debug"


class SaveConfig(Section):
    """Which epochs keep a checkpoint in ``models/``; ``last.pth`` is written whenever enabled."""

    enabled: bool = True
    every_n_seconds: float | None = Field(None, ge=0)
    every_n_epochs: Count | None = 50
    epochs: list[Count] = []
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
    # Two keys of some of robomimic's revisions; the second says nothing without the first.
    batched: Annotated[
        bool, only(False, "episodes always run in parallel, in num_workers processes")
    ] = Field(False, exclude=True)
    num_batch_envs: int = Field(5, exclude=True)
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
            parts = Path(name).parts
            is_folder = parts and ".." not in parts and not Path(name).is_absolute()
            if not (is_folder and name.isprintable() and name.strip()):
                raise ValueError(f"{shown(name)} is no name of a folder below train.output_dir")
            longest = max(len(os.fsencode(part)) for part in parts)
            if longest > 255:
                raise ValueError(f"{shown(name)} is too long for a folder: {longest} bytes of 255")
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
    def _agrees(self) -> "ActionConfig":
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
    seq_length: Steps = 1
    pad_seq_length: bool = True
    frame_stack: Steps = 1
    pad_frame_stack: bool = True
    dataset_keys: list[str] = ["actions", "rewards", "dones"]
    action_keys: Annotated[list[str], Field(min_length=1)] = ["actions"]
    action_config: dict[str, ActionConfig] = {"actions": ActionConfig()}
    rewards: RewardsConfig = RewardsConfig()
    goal_mode: Literal["last"] | None = None
    # Of some of robomimic's revisions.
    data_format: Annotated[
        str, only("robomimic", "turn other data into HDF5 files of robomimic's layout")
    ] = Field("robomimic", exclude=True)
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

    @field_validator("action_keys")
    @classmethod
    def _stand_once(cls, keys: list[str]) -> list[str]:
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{shown(key)} is named twice")
        return keys

    @field_validator("data", mode="before")
    @classmethod
    def _path_to_list(cls, data: Any) -> Any:
        entries = [data] if isinstance(data, (str, Path, dict)) else data
        if not isinstance(entries, (list, tuple)):
            return entries
        return [{"path": str(e)} if isinstance(e, (str, Path)) else e for e in entries]


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

    @field_validator("obs", "goal", "subgoal")
    @classmethod
    def _are_of_one_modality(cls, group: dict[str, list[str]]) -> dict[str, list[str]]:
        seen: dict[str, str] = {}
        for modality, keys in group.items():
            for key in keys:
                if seen.setdefault(key, modality) != modality:
                    raise ValueError(
                        f"{shown(key)} is named in {seen[key]} and in {modality}; name it in one"
                    )
        return group


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
