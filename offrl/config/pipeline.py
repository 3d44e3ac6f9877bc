"""Files that combine an algorithm, an environment, agents and a model by the names that they are
registered under (``offrl.online.Registers``): the config of a pipeline, or, if the algorithm is one
of offrl's, the config of an online training."""

import logging
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from offrl.config.build import config_from_content, validated
from offrl.config.files import nested
from offrl.config.schema import Config, LoggingConfig
from offrl.config.section import Count, FreeMap, Map, Section
from offrl.config.train import TrainConfig
from offrl.modules import import_all
from offrl.registry import ALGO_CONFIGS, ALGOS, PARTS, shown
from offrl.tree import leaves, merge

log = logging.getLogger(__name__)

UNUSED = ("speedup", "benchmark")  # sections of other toolkits' files
SECTIONS = ("experiment", "train", "observation", "distributed")  # offrl's sections in such a file
OF_SHAPES = ("model_name", "state_dim", "action_dim", "input_dtype")  # follow from the environment
TRAJECTORY_STEPS = 128  # default length of the longest trajectory


class AlgPara(Section):
    alg_name: str
    """Name of the algorithm."""
    alg_config: FreeMap = Map()
    """Arguments of the algorithm."""


class EnvPara(Section):
    env_name: str
    """Name of the environment."""
    env_info: FreeMap = Map()
    """Arguments of init_env."""


class AgentPara(Section):
    agent_name: str = "Agent"
    """Name of the agent."""
    agent_num: Count = 1
    """Number of agents in each environment."""
    agent_config: FreeMap = Map()
    """Arguments of agents; max_steps is the number of steps of the longest trajectory (128)."""

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
    """Arguments of the model, and its model_name."""

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


class _Train(Section):  # two keys of TrainConfig
    seed: int = Field(1, ge=0)
    output_dir: str = "runs"


class _Distributed(Section):  # a key of DistributedConfig
    address: str | None = None


class _Meta(Section):
    provenance: FreeMap = Map()  # written by trainings


class PipelineConfig(Section):
    """The content of a file with a pipeline's parts (``alg_para``, ``env_para``, ...)."""

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
    """train; evaluate (act without exploring); or train, with one more explorer that evaluates."""
    checkpoint: str | None = None
    """File of weights to begin with, or folder of a run."""
    episodes: Count = 20
    """Number of episodes of an evaluation."""
    experiment: _Experiment
    train: _Train = _Train()
    distributed: _Distributed = _Distributed()
    meta: _Meta = _Meta()


def pipeline_config(content: Mapping[str, Any]) -> PipelineConfig:
    """Make the config of a file's content. ``ValueError`` names every wrong key or value."""
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
    """Return the name of the algorithm in such a file, if there is one."""
    part = content.get("alg_para")
    name = part.get("alg_name") if isinstance(part, Mapping) else None
    return name if isinstance(name, str) else None


def config_of(content: Mapping[str, Any], ignore_unknown: bool = False) -> Config | PipelineConfig:
    """Make the config of any file's content; a pipeline's has ``alg_para``."""
    if "alg_para" in content:
        return pipeline_config(content)
    return config_from_content(content, ignore_unknown)


def gymnasiums(env_name: str, env_info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of one of gymnasium's environments, which for ``GymEnv`` is in ``env_info``,
    and its arguments. (``vision: false`` of other toolkits' files has no effect.)"""
    info = {key: x for key, x in env_info.items() if (key, x) != ("vision", False)}
    return (info.pop("name", env_name) if env_name == "GymEnv" else env_name), info


def online_content(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a pipeline's file with an algorithm of offrl's to the config of an online training by
    explorers; return other content unchanged.

    ``alg_config`` and the options of the model become keys of the sections ``algo`` and ``train``.
    Raises ``ValueError`` for settings that offrl's algorithms do not support.
    """
    said = name_in(content) or ""
    name = said.lower()
    if not said or name not in ALGO_CONFIGS.names():
        return content
    parts = {key: value for key, value in content.items() if key not in SECTIONS}
    file = pipeline_config(merge({"model_para": {"actor": {"model_name": "MLP"}}}, parts))
    import_all(file.modules)
    if PARTS["algorithm"].get(said) is not None:  # a user's algorithm of that name
        return content
    if file.agent_para.agent_num > 1:
        raise ValueError(f"agent_para.agent_num: offrl's {name} learns for one agent; set it to 1")
    if file.mode == "evaluate":
        raise ValueError(f"mode: evaluate what {name} has learned with offrl rollout --checkpoint")
    options = merge(file.alg_para.alg_config, _options_of_model(file, name))
    of_train = options.keys() & TrainConfig.model_fields
    online, distributed = {"num_envs": 1, **_agent(file.agent_para)}, {"explorers": file.env_num}
    on_policy = ALGOS[name](ALGO_CONFIGS[name]())[0].ON_POLICY
    if on_policy:
        distributed["num_trajectories"] = file.env_num
    if length := file.agent_para.agent_config.get("max_steps"):
        section, key = (online, "collect_steps") if on_policy else (distributed, "trajectory_steps")
        section[key] = length
    experiment = {"name": name, "ckpt_path": file.checkpoint, "rollout": {"n": file.episodes}}
    train = {"num_steps": file.max_steps, "online": online}
    made = {
        "algo_name": name,
        "experiment": experiment | _environment(file),
        "train": train | {key: options[key] for key in of_train},
        "algo": {key: value for key, value in options.items() if key not in of_train},
        "distributed": distributed,
    }
    return merge(made, {key: content[key] for key in SECTIONS if key in content})


def _environment(file: PipelineConfig) -> dict[str, Any]:
    """Return the keys of ``experiment`` for the environment."""
    name, info = file.env_para.env_name, file.env_para.env_info
    part = PARTS["environment"].get(name)
    if part is None or part.__module__ == "offrl.pipelines.registers":
        name, info = gymnasiums(name, info)
        return {"env": name, "env_meta_update_dict": {"env_kwargs": info}}
    kind = {"type": f"{part.__module__}.{part.__name__}", "env_kwargs": info}
    return {"env": name, "env_meta_update_dict": kind}


def _agent(para: AgentPara) -> dict[str, Any]:
    """Return the keys of ``train.online`` for the agent; none for offrl's own."""
    name, config = para.agent_name, para.agent_config
    if name != AgentPara().agent_name:
        if (part := PARTS["agent"].get(name)) is None:
            raise ValueError(
                f"agent_para.agent_name: no agent {shown(name)} is registered; name its module "
                "under modules, or leave agent_name out"
            )
        return {"agent": f"{part.__module__}.{part.__name__}", "agent_config": config}
    if others := config.keys() - {"max_steps"}:
        log.warning(f"agent_para.agent_config: {', '.join(sorted(others))}: not used")
    return {}


def _options_of_model(file: PipelineConfig, name: str) -> dict[str, Any]:
    """Return the keys of ``algo`` that follow from the section of the model."""
    actor = file.model_para.actor
    known = ("MLP", "ActorValue", "Actor", "Critics", name, f"{name}Mlp")
    if actor["model_name"].lower() not in [x.lower() for x in known]:
        raise ValueError(
            f"model_para.actor.model_name: offrl's {name} makes its networks itself, not "
            f"{shown(actor['model_name'])}; name {known[0]}, or see docs/howto/own_network.md"
        )
    options = {key: value for key, value in actor.items() if key not in OF_SHAPES}
    sizes = options.pop("hidden_sizes", None)
    sized = [key for key in leaves(ALGO_CONFIGS[name]().to_dict()) if key.endswith("layer_dims")]
    for key in sized if sizes else ():
        options = merge(options, nested(key, sizes))
    return options
