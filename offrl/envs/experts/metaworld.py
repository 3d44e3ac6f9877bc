"""Meta-World's own experts."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np

from offrl.envs.metaworld import find_task, import_metaworld


def metaworld_expert(task: str) -> Callable[[Mapping[str, np.ndarray]], np.ndarray]:
    """Meta-World's scripted expert of a task: action ``[4]`` in [-1, 1]."""
    policy = find_task(import_metaworld("metaworld.policies").ENV_POLICY_MAP, task)()

    def expert(obs: Mapping[str, np.ndarray]) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of actions beyond the range, which it counts on
            return np.clip(policy.get_action(obs["flat"]), -1.0, 1.0)

    expert.horizon = 500  # at which Meta-World's episodes end
    return expert
