"""Files of parts whose algorithm is offrl's own, as the configs of online trainings."""

import importlib.util
from collections.abc import Mapping
from typing import Any

from offrl.config.build import config_from_content
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
from offrl.tree import merge

SECTIONS = ("experiment", "train", "observation", "distributed")  # that may stand beside
OF_SHAPES = ("model_name", "state_dim", "action_dim", "input_dtype")  # which environments say


def online_content(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a file of parts says, as the config of an online training by explorers, if its algorithm
    is one of offrl's; other content as it is. ``ValueError`` for what offrl's own cannot do.

    ``alg_config`` and the options of the model are keys of the sections ``algo`` and ``train``.
    """
    said = name_in(content) or ""
    name = said.lower()
    if not said.isidentifier() or importlib.util.find_spec(f"offrl.algos.{name}") is None:
        return content
    modules = content.get("modules")
    import_all([x for x in modules if isinstance(x, str)] if isinstance(modules, list) else [])
    if PARTS["algorithm"].get(said) is not None:  # a user's own of that name
        return content
    algo_class, _ = ALGOS[name](ALGO_CONFIGS[name]())
    parts = {key: value for key, value in content.items() if key not in SECTIONS}
    file = pipeline_config(merge({"model_para": {"actor": {"model_name": name}}}, parts))
    if file.agent_para.agent_num > 1:
        raise ValueError(f"agent_para.agent_num: offrl's {name} learns for one agent; set it to 1")
    if file.mode == "evaluate":
        raise ValueError(f"mode: evaluate what {name} has learned with offrl rollout --checkpoint")
    options = file.alg_para.alg_config | _options_of_model(file, name, algo_class.ON_POLICY)
    of_train = {k for k in options if k in TrainConfig.model_fields}
    length = file.agent_para.agent_config.get("max_steps")
    online = _agent(file.agent_para) | {"num_envs": 1}
    distributed = {"explorers": file.env_num}
    if algo_class.ON_POLICY:
        distributed["num_trajectories"] = file.env_num
        online |= {"collect_steps": length} if length else {}
    elif length:
        distributed["trajectory_steps"] = length
    experiment = {"name": name, **_environment(file), "rollout": {"n": file.episodes}}
    if file.checkpoint is not None:
        experiment["ckpt_path"] = file.checkpoint
    train = {"num_steps": file.max_steps, "online": online}
    made: dict[str, Any] = {
        "algo_name": name,
        "experiment": experiment,
        "train": train | {key: options[key] for key in of_train},
        "algo": {key: value for key, value in options.items() if key not in of_train},
        "distributed": distributed,
    }
    made = merge(made, {key: content[key] for key in SECTIONS if key in content})
    try:
        config_from_content(made)
    except ValueError as error:
        where = "algo is alg_para.alg_config and model_para.actor"
        raise ValueError(f"{error} ({where})" if "algo." in str(error) else str(error)) from None
    return made


def _environment(file: PipelineConfig) -> dict[str, Any]:
    """The keys of ``experiment`` that name the environment."""
    name, info = file.env_para.env_name, file.env_para.env_info
    part = PARTS["environment"].get(name)
    if part is None or part.__module__ == "offrl.online.registers":
        name, info = gymnasiums(name, info)
        return {"env": name, "env_meta_update_dict": {"env_kwargs": info}}
    kind = {"type": f"{part.__module__}.{part.__name__}", "env_kwargs": info}
    return {"env": name, "env_meta_update_dict": kind}


def _agent(para: AgentPara) -> dict[str, Any]:
    """The keys of ``train.online`` that name the agent; none for offrl's own."""
    name, config = para.agent_name, para.agent_config
    if name != AgentPara().agent_name:
        try:
            part = PARTS["agent"][name]
        except ValueError as error:
            raise ValueError(f"agent_para.agent_name: {error}") from None
        return {"agent": f"{part.__module__}.{part.__name__}", "agent_config": config}
    if others := config.keys() - {"max_steps"}:
        log.warning(f"agent_para.agent_config: {', '.join(sorted(others))}: not used by {name}")
    return {}


def _options_of_model(file: PipelineConfig, name: str, on_policy: bool) -> dict[str, Any]:
    """The keys of ``algo`` that the model says."""
    actor, networks = file.model_para.actor, ("ActorValue",) if on_policy else ("Actor", "Critics")
    known = ("MLP", *networks, name, f"{name}Mlp")
    if actor["model_name"].lower() not in [x.lower() for x in known]:
        raise ValueError(
            f"model_para.actor.model_name: offrl's {name} makes its networks itself, not "
            f"{shown(actor['model_name'])}; name {known[0]}, or see docs/howto/own_network.md"
        )
    options = {key: value for key, value in actor.items() if key not in OF_SHAPES}
    if sizes := options.pop("hidden_sizes", None):
        options |= _sized(ALGO_CONFIGS[name]().to_dict(), sizes)
    return options


def _sized(section: Mapping[str, Any], sizes: Any) -> dict[str, Any]:
    """The keys of a section that say how large layers are, with other sizes."""
    inner = {k: _sized(x, sizes) for k, x in section.items() if isinstance(x, Mapping)}
    own = {k: sizes for k in section if k.endswith("layer_dims")}
    return own | {k: x for k, x in inner.items() if x}
