"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them,
and the goals of their tasks are where they get (``offrl.envs.demonstrated``).

A new one is a function ``obs -> action`` in the file of its simulator, registered under the name
of its task, ``@demonstrator("Stack", horizon=200)``; a new simulator's is a file that is imported
here. Simulators that bring experts, as Meta-World does, have a function from a task's name to its
expert. ``ExpertPolicy(expert)`` is the policy that ``EnvPool.run`` takes, also of a function of
your own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offrl.envs import maybe_metaworlds
from offrl.envs.experts.expert import ExpertPolicy, demonstrator
from offrl.envs.experts.robosuite import lift  # which registers those of robosuite
from offrl.envs.metaworld import metaworld_expert
from offrl.registry import EXPERTS, did_you_mean

__all__ = ["ExpertPolicy", "demonstrator", "lift", "metaworld_expert", "scripted_expert"]


def scripted_expert(env_args: Mapping[str, Any]) -> Callable[..., np.ndarray]:
    """The demonstrator of the task that ``env_args`` describes (``make_env``). ``ValueError`` says
    which there are."""
    name = env_args["env_name"]
    if env_args.get("type") == "metaworld":
        return metaworld_expert(name)
    if name not in EXPERTS.names():
        known = ", ".join(EXPERTS.names())
        raise ValueError(
            f"{name} has no scripted expert; there are those of {known} and of Meta-World's tasks."
            + (maybe_metaworlds(name) or did_you_mean(name, EXPERTS.names()))
        )
    return EXPERTS[name]
