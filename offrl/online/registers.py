"""The parts of a pipeline: entered under their names, and built by a file that combines them."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from offrl.algos.base import Algorithm
from offrl.config.pipeline import PipelineConfig
from offrl.modules import allow_names, import_all
from offrl.online.agent import Agent as AnyAgent
from offrl.online.control import Agent
from offrl.online.environment import Environment
from offrl.registry import PARTS

log = logging.getLogger(__name__)

C = TypeVar("C", bound=type)
BASES = {"algorithm": Algorithm, "agent": AnyAgent, "environment": Environment}


def _enter(kind: str, part: C) -> C:
    name, base = part.__name__, BASES.get(kind)
    if base is not None and not issubclass(part, base):
        raise ValueError(f"{kind} {name}: derive it from offrl.online.{base.__name__}")
    if base is Environment and not hasattr(part, "init_env"):
        raise ValueError(f"environment {name}: define init_env(env_info)")
    known = PARTS[kind].get(name)
    if known is not None and known.__module__ != part.__module__:
        log.warning(
            f"{kind} {name}: that of {part.__module__} takes the place of {known.__module__}'s"
        )
    return PARTS[kind].register(name, part.__module__)(part)


class Registers:
    """Decorators that enter a class under its own name, by which a file names it: ``alg_name``,
    ``model_name``, ``agent_name``, ``env_name``."""

    algorithm: Callable[[C], C] = staticmethod(partial(_enter, "algorithm"))
    model: Callable[[C], C] = staticmethod(partial(_enter, "model"))
    agent: Callable[[C], C] = staticmethod(partial(_enter, "agent"))
    env: Callable[[C], C] = staticmethod(partial(_enter, "environment"))


Registers.agent(Agent)


class Parts:
    """The parts that a config names. ``ValueError`` for what is not known, with what is."""

    def __init__(self, config: PipelineConfig):
        import_all(config.modules)
        self.config = config
        actor = config.model_para.actor
        named = {
            "alg_para.alg_name": ("algorithm", config.alg_para.alg_name),
            "env_para.env_name": ("environment", config.env_para.env_name),
            "agent_para.agent_name": ("agent", config.agent_para.agent_name),
            "model_para.actor.model_name": ("model", actor["model_name"]),
        }
        allow_names(name for _, name in named.values())
        found = {}
        for path, (kind, name) in named.items():
            try:
                found[kind] = PARTS[kind][name]
            except ValueError as error:
                said = f"modules: {', '.join(config.modules)}" if config.modules else "no modules"
                raise ValueError(f"{path}: {error} (The file names {said}.)") from None
        self._found = found

    def algorithm(self) -> Any:
        return self._found["algorithm"](
            self.config.model_para.actor, self.config.alg_para.alg_config
        )

    def environment(self) -> Any:
        return self._found["environment"](self.config.env_para.env_info)

    def agent(self, env: Any, alg: Any) -> Any:
        return self._found["agent"](env, alg, self.config.agent_para.agent_config)
