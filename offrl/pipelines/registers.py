"""The registered parts of a pipeline, and their construction by a file."""

import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import gymnasium
from torch import nn

from offrl.config.pipeline import PipelineConfig, gymnasiums
from offrl.envs.gymnasium import GymnasiumAdapter, GymnasiumEnv
from offrl.envs.wrappers import Adapted
from offrl.faces.agent import Agent
from offrl.faces.algorithm import Algorithm
from offrl.faces.environment import Environment
from offrl.modules import allow_names, import_all
from offrl.registry import ALGO_CONFIGS, ENVS, PARTS, did_you_mean

log = logging.getLogger(__name__)

C = TypeVar("C", bound=Callable)
Make = Callable[..., Any]
BASES = {"algorithm": Algorithm, "agent": Agent, "environment": Environment}


def _register(kind: str, part: Any) -> Any:
    name, base = part.__name__, BASES.get(kind)
    if base is not None and not issubclass(part, base):
        raise ValueError(f"{kind} {name}: derive it from offrl.online.{base.__name__}")
    if base is Environment and part.init_env is Environment.init_env:
        raise ValueError(f"environment {name}: define init_env(env_info)")
    known = PARTS[kind].get(name)
    if known is not None and known.__module__ not in (part.__module__, __name__):
        log.warning(
            f"{kind} {name}: that of {part.__module__} takes the place of {known.__module__}'s"
        )
    if base is Environment:  # offrl's own algorithms act in it, too
        path = f"{part.__module__}.{name}"
        ENVS.register(name, part.__module__)(
            lambda env_name, info: GymnasiumAdapter(Adapted(part(info)), env_name, info, path)
        )
    return PARTS[kind].register(name, part.__module__)(part)


class Registers:
    """Decorators that register a class under its own name, which a file then uses: ``alg_name``,
    ``model_name``, ``agent_name``, ``env_name``."""

    algorithm: Callable[[C], C] = staticmethod(partial(_register, "algorithm"))
    model: Callable[[C], C] = staticmethod(partial(_register, "model"))
    agent: Callable[[C], C] = staticmethod(partial(_register, "agent"))
    env: Callable[[C], C] = staticmethod(partial(_register, "environment"))


Registers.agent(Agent)


@Registers.env
class GymEnv(Environment):
    """One of gymnasium's environments, named by ``env_info`` and made with its other keys."""

    def init_env(self, env_info: Mapping[str, Any]) -> gymnasium.Env:
        return GymnasiumEnv(*gymnasiums("GymEnv", env_info)).env


@Registers.model
def MLP(model_info: Mapping[str, Any]) -> nn.Module:
    """Make a network from states ``[B, *state_dim]`` to ``[B, action_dim]``, with hidden layers of
    ``hidden_sizes``."""
    dims = math.prod(model_info["state_dim"]), *model_info.get("hidden_sizes", [64, 64])
    layers = [layer for sizes in pairwise(dims) for layer in (nn.Linear(*sizes), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(dims[-1], model_info["action_dim"]))


def makers_of(config: PipelineConfig) -> tuple[Make, Make, Make]:
    """Find the functions that make the parts that a config names: an algorithm, an environment,
    and an agent, whose arguments are an environment and an algorithm. Raises ``ValueError``, with
    the known names, for an unknown one."""
    import_all(config.modules)
    alg, env, agent = config.alg_para, config.env_para, config.agent_para
    actor, env_name = config.model_para.actor, env.env_name
    if PARTS["environment"].get(env_name) is None and env_name in gymnasium.registry:
        make = PARTS["environment"].register(env_name)
        make(lambda env_info: GymEnv({"name": env_name, **env_info}))
    named = {
        "alg_para.alg_name": ("algorithm", alg.alg_name),
        "env_para.env_name": ("environment", env_name),
        "agent_para.agent_name": ("agent", agent.agent_name),
        "model_para.actor.model_name": ("model", actor["model_name"]),
    }
    allow_names([*named.values()])
    found = {}
    for path, (kind, name) in named.items():
        try:
            found[kind] = PARTS[kind][name]
        except ValueError as error:
            said = f"modules: {', '.join(config.modules)}" if config.modules else "no modules"
            ours = ALGO_CONFIGS.names() if kind == "algorithm" else []
            near = " A Learner trains it." if name in ours else did_you_mean(name, ours)
            raise ValueError(f"{path}: {error}{near} (The file names {said}.)") from None
    return (
        partial(found["algorithm"], actor, alg.alg_config),
        partial(found["environment"], env.env_info),
        lambda env, alg: found["agent"](env, alg, agent.agent_config),
    )
