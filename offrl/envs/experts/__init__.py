"""Scripted demonstrators: functions from an observation to an action, without memory.

Memoryless experts make data that a memoryless policy can learn. ``offrl collect`` runs them,
and the goals of their tasks are where they get (``offrl.envs.demonstrated``).

A new one is a function ``obs -> action`` in the file of its simulator, registered under the name
of its task, ``@demonstrator("Stack", horizon=200)``; a new simulator's is a file that is imported
here. A simulator that brings experts of its own, as Meta-World does, has ``expert_of(task)``.
``ExpertPolicy(expert)`` is the policy that ``EnvPool.run`` takes, also of a function of
your own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from offrl.envs.experts.expert import ExpertPolicy, demonstrator
from offrl.envs.experts.robosuite import lift  # which registers those of robosuite
from offrl.envs.tasks import maybe_metaworlds
from offrl.registry import ENVS, EXPERTS, did_you_mean

__all__ = ["ExpertPolicy", "demonstrator", "lift", "scripted_expert"]


def scripted_expert(env_args: Mapping[str, Any]) -> Callable[..., np.ndarray]:
    """Find the demonstrator of the task that ``env_args`` describes (``make_env``). ``ValueError``
    says which there are."""
    name = env_args["env_name"]
    if env_args.get("type") == "metaworld":
        return ENVS["metaworld"].expert_of(name)
    if name not in EXPERTS.names():
        known = ", ".join(EXPERTS.names())
        raise ValueError(
            f"{name} has no scripted expert; there are those of {known} and of Meta-World's tasks."
            + (maybe_metaworlds(name) or did_you_mean(name, EXPERTS.names()))
        )
    return EXPERTS[name]
