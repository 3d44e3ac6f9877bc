"""Turns files of parts whose algorithm is one of offrl's into configs of online trainings."""

from collections.abc import Mapping
from typing import Any

from offrl.config.files import nested
from offrl.config.pipeline import (
    AgentPara,
    PipelineConfig,
    gymnasiums,
    log,
    name_in,
    pipeline_config,
)
from offrl.config.train import TrainConfig
from offrl.modules import import_all
from offrl.registry import ALGO_CONFIGS, ALGOS, PARTS, shown
from offrl.tree import leaves, merge

SECTIONS = ("experiment", "train", "observation", "distributed")  # of offrl's, in such a file
OF_SHAPES = ("model_name", "state_dim", "action_dim", "input_dtype")  # environments say these


def online_content(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Turn a file of parts whose algorithm is one of offrl's into the config of an online training
    by explorers; give other content back as it is.

    ``alg_config`` and the options of the model become keys of the sections ``algo`` and ``train``.
    Raises ``ValueError`` for what offrl's algorithms cannot do.
    """
    said = name_in(content) or ""
    name = said.lower()
    if not said or name not in ALGO_CONFIGS.names():
        return content
    parts = {key: value for key, value in content.items() if key not in SECTIONS}
    file = pipeline_config(merge({"model_para": {"actor": {"model_name": "MLP"}}}, parts))
    import_all(file.modules)
    if PARTS["algorithm"].get(said) is not None:  # a user's own of that name
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
    """Give the keys of ``experiment`` that name the environment."""
    name, info = file.env_para.env_name, file.env_para.env_info
    part = PARTS["environment"].get(name)
    if part is None or part.__module__ == "offrl.pipelines.registers":
        name, info = gymnasiums(name, info)
        return {"env": name, "env_meta_update_dict": {"env_kwargs": info}}
    kind = {"type": f"{part.__module__}.{part.__name__}", "env_kwargs": info}
    return {"env": name, "env_meta_update_dict": kind}


def _agent(para: AgentPara) -> dict[str, Any]:
    """Give the keys of ``train.online`` that name the agent; none for offrl's own."""
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
    """Give the keys of ``algo`` that follow from the section of the model."""
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
