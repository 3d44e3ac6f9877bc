"""A file that combines the parts of a pipeline: an algorithm, an environment, agents and a model,
by the names that they are registered under (``offrl.online.Registers``)."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from offrl.config.build import config_from_content, validated
from offrl.config.experiment import LoggingConfig
from offrl.config.schema import Config
from offrl.config.section import Count, FreeMap, Map, Section
from offrl.registry import shown
from offrl.tree import merge

log = logging.getLogger(__name__)

UNUSED = ("speedup", "benchmark")  # of performance, which other toolkits' files have
TRAJECTORY_STEPS = 128  # of the longest trajectory, unless agent_config says otherwise


class AlgPara(Section):
    alg_name: str
    """Name of the algorithm."""
    alg_config: FreeMap = Map()
    """What the algorithm is made with."""


class EnvPara(Section):
    env_name: str
    """Name of the environment."""
    env_info: FreeMap = Map()
    """What init_env is given."""


class AgentPara(Section):
    agent_name: str = "Agent"
    """Name of the agent."""
    agent_num: Count = 1
    """Number of agents in each environment."""
    agent_config: FreeMap = Map()
    """What agents are made with. Its key max_steps is the number of steps of the longest trajectory
    (128)."""

    @field_validator("agent_config")
    @classmethod
    def _check_max_steps(cls, value: Map) -> Map:
        steps = value.get("max_steps", 1)
        if type(steps) is not int or steps < 1:
            raise ValueError(f"max_steps: a whole number from 1 on is needed, not {shown(steps)}")
        return value

    @property
    def trajectory_steps(self) -> int:
        return self.agent_config.get("max_steps", TRAJECTORY_STEPS)

    @property
    def names(self) -> list[str]:
        """The names of the agents in an environment: ``agent_0``, ``agent_1``, ..."""
        return [f"agent_{number}" for number in range(self.agent_num)]


class ModelPara(Section):
    actor: FreeMap
    """What the model is made with, and its model_name."""

    @field_validator("actor")
    @classmethod
    def _check_name(cls, value: Map) -> Map:
        name = value.get("model_name")
        if not isinstance(name, str):
            raise ValueError(f"model_name: the name of a model is needed, not {shown(name)}")
        return value


class _Experiment(Section):
    name: str
    """Name of the run; that of the algorithm, if it has none."""
    logging: LoggingConfig = LoggingConfig()


class _Train(Section):
    """Two keys of ``TrainConfig``."""

    seed: int = Field(1, ge=0)
    output_dir: str = "runs"


class _Distributed(Section):
    """A key of ``DistributedConfig``."""

    address: str | None = None


class _Meta(Section):
    provenance: FreeMap = Map()  # written by a training


class PipelineConfig(Section):
    """The content of such a file, with its defaults."""

    modules: list[str] = []
    """Modules that register the parts, found in the file's folder as well."""
    alg_para: AlgPara
    env_para: EnvPara
    agent_para: AgentPara = AgentPara()
    model_para: ModelPara
    env_num: Count = 1
    """Number of explorers, each with an environment."""
    max_steps: Count = 100_000
    """Steps in all environments together."""
    mode: Literal["train", "evaluate", "train_with_evaluate"] = "train"
    """train; evaluate (act without exploring); or train with another explorer beside, which
    evaluates."""
    checkpoint: str | None = None
    """File of weights to begin with."""
    episodes: Count = 20
    """Number of episodes of an evaluation."""
    experiment: _Experiment
    train: _Train = _Train()
    distributed: _Distributed = _Distributed()
    meta: _Meta = _Meta()


def pipeline_config(content: Mapping[str, Any]) -> PipelineConfig:
    """Make the config of what a file holds. ``ValueError`` names every wrong key or value."""
    if unused := [key for key in UNUSED if key in content]:
        log.warning(f"{', '.join(unused)}: not used, as offrl has nothing to set there")
        content = {key: value for key, value in content.items() if key not in UNUSED}
    name = name_in(content) or "pipeline"
    known = PipelineConfig(
        alg_para=AlgPara(alg_name=""),
        env_para=EnvPara(env_name=""),
        model_para=ModelPara(actor={"model_name": ""}),
        experiment=_Experiment(name=name),
    ).to_dict()
    return validated(PipelineConfig, merge({"experiment": known["experiment"]}, content), known)


def name_in(content: Mapping[str, Any]) -> str | None:
    """Give the name of the algorithm in such a file, if it says one."""
    part = content.get("alg_para")
    name = part.get("alg_name") if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else None


def config_of(content: Mapping[str, Any], ignore_unknown: bool = False) -> Config | PipelineConfig:
    """Make the config of what any config file holds; a pipeline's is known by ``alg_para``."""
    if "alg_para" in content:
        return pipeline_config(content)
    return config_from_content(content, ignore_unknown)


def gymnasiums(env_name: str, env_info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Give the name of one of gymnasium's environments, which for ``GymEnv`` is in ``env_info``,
    and what it is made with. (``vision: false`` of other toolkits' files changes nothing.)"""
    info = {key: x for key, x in env_info.items() if (key, x) != ("vision", False)}
    return (info.pop("name", env_name) if env_name == "GymEnv" else env_name), info
