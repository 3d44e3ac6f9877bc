"""A whole config, and its sections ``observation`` and ``meta``, as robomimic has them."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import field_validator

from offrl.config.algo import AlgoConfig
from offrl.config.experiment import ExperimentConfig
from offrl.config.online import LONGEST_EPISODE, DistributedConfig
from offrl.config.section import FreeMap, KeyLists, Map, Section
from offrl.config.train import TrainConfig
from offrl.registry import shown


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
    ColorRandomizer, GaussianNoiseRandomizer, or one of your own. null: none."""
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
        """Yield itself and its place; of a hierarchy, those of its parts."""
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
        """Set what follows from acting while learning, where ``said`` has no such key: evaluations
        in episodes as long as in learning, and random steps for a third of all at most."""
        online, num_steps = self.train.online, self.train.num_steps
        if "horizon" not in said.get("experiment", {}).get("rollout", {}):
            self.experiment.rollout.horizon = online.horizon or LONGEST_EPISODE
        if num_steps and "random_steps" not in said.get("train", {}).get("online", {}):
            online.random_steps = min(online.random_steps, num_steps // 3)

    @property
    def all_obs_keys(self) -> list[str]:
        """The names of all observations, of goals and subgoals as well, in alphabetical order."""
        parts = (part.modalities.to_dict() for _, part in self.observation.parts())
        groups = (group for modalities in parts for group in modalities.values())
        return sorted({key for group in groups for keys in group.values() for key in keys})
