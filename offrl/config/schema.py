"""A config and its sections ``experiment``, ``observation`` and ``meta``, as in robomimic."""

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from offrl.config.algo import AlgoConfig
from offrl.config.online import LONGEST_EPISODE, DistributedConfig
from offrl.config.section import Count, FreeMap, KeyLists, Map, MustBe, Section, without_effect
from offrl.config.train import TrainConfig
from offrl.registry import shown

log = logging.getLogger(__name__)


class LoggingConfig(Section):
    terminal_output_to_txt: bool = True
    """Write the messages and figures of the training to logs/log.txt as well."""
    log_tb: bool = True
    """Write TensorBoard files to logs/tb."""
    log_wandb: bool = False
    """Send the figures to Weights & Biases, which must be installed."""
    wandb_proj_name: str = "debug"
    """Name of the project at Weights & Biases."""


class SaveConfig(Section):
    """Epochs that keep a checkpoint in ``models/``; ``last.pth`` is written whenever enabled."""

    enabled: bool = True
    """Write checkpoints. If false, there is not even a last.pth to resume from."""
    every_n_seconds: float | None = Field(None, ge=0)
    """Seconds between two checkpoints, kept at the end of an epoch. null: time does not matter."""
    every_n_epochs: Count | None = 50
    """Number of epochs between two checkpoints. null: epochs do not matter."""
    epochs: list[Count] = []
    """Keep a checkpoint after each of these epochs."""
    on_best_validation: bool = False
    """Keep a checkpoint whenever the validation loss is the lowest so far."""
    on_best_rollout_return: bool = False
    """Keep a checkpoint whenever the mean return in the simulator is the highest so far."""
    on_best_rollout_success_rate: bool = True
    """Keep a checkpoint whenever the success rate in the simulator is the highest so far. Of equal
    ones the higher mean return counts, and it alone where the environment reports no success."""

    def is_due(self, epoch: int, seconds: float) -> bool:
        """Say whether a checkpoint is kept at the end of an epoch, so long after the last one."""
        every = self.every_n_epochs
        return (
            epoch in self.epochs
            or (every is not None and epoch % every == 0)
            or (self.every_n_seconds is not None and seconds > self.every_n_seconds)
        )


class RolloutConfig(Section):
    """Evaluation in the simulator every ``rate`` epochs, after ``warmstart`` of them."""

    enabled: bool = True
    """Evaluate the policy in the simulator during and after the training."""
    n: Count = 50
    """Number of episodes per evaluation and environment."""
    horizon: Count = 400
    """Largest number of steps in an episode. With train.num_steps the default is
    train.online.horizon, or, if that is null, 100000: the environment ends its episodes."""
    rate: Count = 50
    """Number of epochs between two evaluations. The last epoch always has one."""
    test_last: bool = False
    """Test the policy that the training ends with as well, not only the best one."""
    warmstart: int = 0
    """Number of first epochs without an evaluation."""
    terminate_on_success: bool = True
    """End an episode when the task is solved, before the horizon."""
    batched: Annotated[
        bool, MustBe(False, "episodes always run in parallel, in num_workers processes")
    ] = without_effect(False)
    num_batch_envs: int = without_effect(5)
    backend: Literal["processes", "ray"] = "processes"
    """Place where the simulators run: in processes of this machine, or on the Ray of
    distributed.address. The results are the same."""
    num_workers: Count | None = None
    """Number of simulators. null: one for each CPU core, or CPU of the Ray."""
    in_background: bool = False
    """Evaluate a copy of the policy in processes beside the training, which goes on meanwhile. It
    waits if the next evaluation is due before the last one has ended, and for the one of the last
    epoch. Results, weights and the best checkpoint are the same. Not for backend=ray or
    torchrun."""
    latency_ms: float = Field(0.0, ge=0)
    """Milliseconds that a chunk of actions takes to be inferred, as far as the simulator is
    concerned, rounded up to its steps. It costs no time."""
    asynchronous: bool = False
    """Infer a chunk while the one before is played, and leave out its actions that are past when it
    comes. If false, the robot stands still for latency_ms."""
    control_freq: float | None = Field(None, gt=0)
    """Steps of the environment in a second, for latency_ms. null: robosuite's control_freq."""
    timeout: float = Field(300.0, gt=0)
    """Seconds without an answer after which a simulator counts as hung."""
    video_episodes: int = Field(3, ge=0)
    """Number of episodes that a video shows. 0: no video."""


class ProxiesConfig(Section):
    """Evaluation without an environment every ``rate`` epochs."""

    enabled: bool = False
    """Measure the policy on recorded data, without an environment: on the held-out demonstrations
    if experiment.validate is true, else on those of the training."""
    rate: Count = 1
    """Number of epochs between two measurements."""
    fqe_steps: int = Field(0, ge=0)
    """Training steps of fitted Q evaluation, which starts anew each time. 0: no such evaluation."""


with warnings.catch_warnings():
    # robomimic's key `validate` shadows a long-deprecated method of pydantic's.
    warnings.filterwarnings("ignore", message='Field name "validate"')

    class ExperimentConfig(Section):
        name: str = "test"
        """Name of the experiment: its folder below train.output_dir."""
        validate: bool = False  # type: ignore[assignment]
        """Measure the loss on the data of train.hdf5_validation_filter_key after each epoch."""
        logging: LoggingConfig = LoggingConfig()
        """Logs, and the places that they go to."""
        save: SaveConfig = SaveConfig()
        """Epochs that keep a checkpoint in the folder models/."""
        epoch_every_n_steps: Count | None = 100
        """Training steps that make an epoch. null: one pass over the data."""
        validation_epoch_every_n_steps: Count | None = 10
        """Batches of a validation. null: one pass over the held-out data."""
        env: str | None = None
        """Name of the environment to evaluate and, with train.num_steps, act in: gymnasium's,
        ALE/... (Atari), or a task of Meta-World or robosuite. null: that of the data."""
        additional_envs: list[str] | None = None
        """Names of more environments to evaluate in. null: no others."""
        render: bool = False
        """Must be false: no windows are opened. Use render_video."""
        render_video: bool = True
        """Film the first episodes of each evaluation, into videos/."""
        keep_all_videos: bool = False
        """Keep the video of every evaluation, not only the latest one."""
        video_skip: Count = 5
        """Number of steps between two frames of a video."""
        rollout: RolloutConfig = RolloutConfig()
        """Evaluation of the policy in the simulator."""
        proxies: ProxiesConfig = ProxiesConfig()
        """Evaluation of the policy without an environment."""
        env_meta_update_dict: FreeMap = {}
        """Laid over the data's env_args in evaluation: {"env_kwargs": {"control_freq": 20}}."""
        ckpt_path: str | None = None
        """Checkpoint, or folder of a run, whose weights a new training starts from. An online
        training (train.num_steps) takes from it what the config does not say, too. null: random
        weights."""

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


class ModalitiesConfig(Section):
    """The observation keys that a policy sees, by group and modality."""

    obs: KeyLists = Map(
        low_dim=["robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos", "object"],
        rgb=[],
        depth=[],
        scan=[],
    )
    """Names of the observations that the policy sees, by their modality: low_dim (vectors), rgb,
    depth, scan or one of your own."""
    goal: KeyLists = Map(low_dim=[], rgb=[], depth=[], scan=[])
    """Names of the observations of the goal that the policy sees (train.goal_mode), by modality."""
    subgoal: KeyLists = Map(low_dim=[], rgb=[], depth=[], scan=[])
    """Names of the observations of a subgoal, which a planner proposes, by their modality."""

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
    """The encoder of the observations of one modality."""

    core_class: str | None = None
    """Network from an observation to features: VisualCore, VisualCoreLanguageConditioned,
    NatureCNN, ScanCore or your own (my_module.my_core). null: none, the observation stays."""
    core_kwargs: FreeMap = Map()
    """Options of that network: backbone_class, pool_class, feature_dimension of VisualCore, ..."""
    obs_randomizer_class: str | list[str] | None = None
    """Random changes of images in training, one or a list in their order: CropRandomizer,
    ShiftRandomizer, ColorRandomizer, GaussianNoiseRandomizer, or one of your own. null: none."""
    obs_randomizer_kwargs: FreeMap | list[FreeMap] = Map()
    """Options of the randomizer; of several, a list with a map for each."""

    def randomizers(self) -> list[tuple[str, dict[str, Any]]]:
        """List the name and arguments of each randomizer, in the order of their use."""
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
    """Observations that the policy sees, and their encoders."""

    modalities: ModalitiesConfig = ModalitiesConfig()
    """Observations that the policy sees."""
    encoder: dict[str, EncoderConfig] = {
        "low_dim": EncoderConfig(),
        "rgb": EncoderConfig(core_class="VisualCore"),
        "depth": EncoderConfig(core_class="VisualCore"),
        "scan": EncoderConfig(core_class="ScanCore"),
    }
    """Encoder of the observations of each modality, before they are joined."""

    def parts(self, place: str = "observation") -> Iterator[tuple[str, "ObservationConfig"]]:
        """Yield this section and its place; for a hierarchy, those of its parts."""
        yield place, self

    @property
    def has_goals(self) -> bool:
        """Say whether goals of the task are seen."""
        return any(self.modalities.goal.values())


class HierarchyObservationConfig(Section):
    """The observations that each part of a policy of several levels sees."""

    def parts(self, place: str = "observation") -> Iterator[tuple[str, ObservationConfig]]:
        for name in self.keys():
            yield from self[name].parts(f"{place}.{name}")

    @property
    def has_goals(self) -> bool:
        return any(self[name].has_goals for name in self.keys() if name != "actor")


class MetaConfig(Section):
    hp_base_config_file: str | None = None
    """Written by robomimic's hyperparameter scans. It changes nothing here."""
    hp_keys: list[str] = []
    """Keys that a scan of robomimic's varied. offrl study shows them, with meta.hp_values."""
    hp_values: list[Any] = []
    """The values of meta.hp_keys in this config."""
    provenance: FreeMap = Map()
    """Written by a training: the commit, versions of packages, and fingerprints of the data."""


class Config(Section):
    """All settings of a training. ``config_factory`` makes one.

    Sections: ``experiment``, ``train``, ``algo``, ``observation``, ``distributed`` and ``meta``.
    """

    algo_name: str
    """Name of the algorithm: one of offrl's, or my_package.my_algo for one of your own."""
    experiment: ExperimentConfig = ExperimentConfig()
    """Name of the run, logs, checkpoints and evaluation."""
    train: TrainConfig = TrainConfig()
    """Data, batches, and the length of the training."""
    algo: AlgoConfig = AlgoConfig()
    """Settings of the algorithm, by algo_name: its networks, losses, optimizers, learning rates."""
    observation: ObservationConfig = ObservationConfig()
    """Observations that the policy sees, and their encoders."""
    distributed: DistributedConfig = DistributedConfig()
    """Explorers and clusters, beside the process that learns."""
    meta: MetaConfig = MetaConfig()
    """Notes about the origin of the config."""

    def follow_online(self, said: Mapping[str, Any]) -> None:
        """Set defaults for acting while learning, unless ``said`` has these keys: evaluations in
        episodes as long as in training, and random steps for at most a third of the training."""
        online, num_steps = self.train.online, self.train.num_steps
        if "horizon" not in said.get("experiment", {}).get("rollout", {}):
            self.experiment.rollout.horizon = online.horizon or LONGEST_EPISODE
        if num_steps and "random_steps" not in said.get("train", {}).get("online", {}):
            online.random_steps = min(online.random_steps, num_steps // 3)

    def check_window(self, key: str, follows: str, may_be_less: bool = False) -> None:
        """Raise ``ValueError`` unless a key of ``train`` equals one of ``algo``. If it
        ``may_be_less``, as a policy may remember more than its samples show, only warn."""
        given, said = self.train[key], attrgetter(follows)(self.algo)
        if given < said and may_be_less:
            log.warning(
                f"train.{key}: {given}, but the policy will remember algo.{follows} = {said} steps "
                "while acting; set both to the same number"
            )
        elif given != said:
            raise ValueError(
                f"train.{key}: {given}, but algo.{follows} is {said}; set both to the same number"
            )

    @property
    def all_obs_keys(self) -> list[str]:
        """The names of all observations, of goals and subgoals as well, in alphabetical order."""
        parts = (part.modalities.to_dict() for _, part in self.observation.parts())
        groups = (group for modalities in parts for group in modalities.values())
        return sorted({key for group in groups for keys in group.values() for key in keys})
