"""Several environments at once, for learning while acting. No torch in here.

``make_vector_env`` chooses the fastest form by a measurement, which changes no result: a list and
processes give the same bits and restore each other's states.
"""

import importlib
import logging
import math
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from typing import Any

import gymnasium
import numpy as np

from offrl.acting.episode import ACTION_MASK, describe
from offrl.envs import check_modules
from offrl.envs.vector.episodes import EpisodicVector, ListVector, Setup
from offrl.envs.vector.form import Stepped, VectorEnv
from offrl.envs.vector.native import GymnasiumVector
from offrl.envs.vector.processes import WORDING, ProcessVector
from offrl.processes import Channel, Child, wait

__all__ = ["GymnasiumVector", "ListVector", "Setup", "Stepped", "VectorEnv", "make_vector_env"]

log = logging.getLogger(__name__)

MESSAGES = 500e-6  # largest time in seconds that messages add to a step in processes
MEASURED = 20  # steps whose time is measured
PATIENCE_S = 30.0  # time limit for these steps; slower environments run in processes


def make_vector_env(
    env_args: Mapping[str, Any],
    num_envs: int,
    seed: int,
    horizon: int | None = None,
    obs_keys: Sequence[str] | None = None,
    terminate_on_success: bool = False,
    timeout: float = 300.0,
) -> VectorEnv:
    """Make N environments: in gymnasium's own vectorised form if there is one that supports the
    arguments, else in processes if that saves more time than messages cost, else in a list.

    env_args, obs_keys: see ``make_env``; observations have only these keys.
    seed: determines all episodes; in a list and in processes each has its own seed.
    horizon: steps after which an episode is truncated; ``None``: the environment's limit.
    terminate_on_success: let a success terminate an episode.
    timeout: seconds without an answer after which an environment in a process is restarted.

    Raises ``ValueError`` if the environment cannot be made.
    """
    check_modules(env_args)
    if num_envs < 1 or (horizon is not None and horizon < 1):
        raise ValueError(f"num_envs is {num_envs} and horizon {horizon}; give at least 1")
    setup = Setup(env_args, num_envs, seed, horizon, obs_keys, terminate_on_success)
    env = _native(setup) or _episodic(setup, timeout)
    if not env.is_limited:
        log.warning(
            f"gymnasium knows no time limit of {env_args['env_name']}: if its episodes do not end "
            "by themselves, set a horizon (train.online.horizon)"
        )
    return env


def _native(setup: Setup) -> GymnasiumVector | None:
    """Make environments in gymnasium's own vectorised form, if it supports the setup."""
    env_args, num_envs, name = setup.env_args, setup.num_envs, str(setup.env_args.get("env_name"))
    is_plain = env_args.get("type", 2) in (2, "gymnasium") and not env_args.get("wrappers")
    if num_envs == 1 or not is_plain:
        return None
    if ":" in name:  # the module registers it
        with suppress(ImportError):  # reported where it is made
            importlib.import_module(name.split(":")[0])
    spec = gymnasium.registry.get(name.rsplit(":", 1)[-1])
    if spec is None or spec.vector_entry_point is None:
        return None
    env_kwargs = env_args.get("env_kwargs") or {}
    limit = env_kwargs.get("max_episode_steps") or spec.max_episode_steps
    if setup.horizon is not None and setup.horizon < (limit or math.inf):
        return None
    entry_point = spec.vector_entry_point
    module = entry_point if isinstance(entry_point, str) else entry_point.__module__
    if setup.terminate_on_success and not module.startswith("gymnasium.envs."):
        return None  # there a success does not end an episode
    try:
        mode: Any = "vector_entry_point"
        vector = gymnasium.make_vec(name, num_envs, vectorization_mode=mode, **env_kwargs)
        env = GymnasiumVector(vector, setup.seed, env_args, setup.obs_keys)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        log.info(f"{name} has no vectorised form: {describe(error)}")
        return None
    log.info(f"{num_envs} environments {name} in gymnasium's own vectorised form")
    return env


def _episodic(setup: Setup, timeout: float) -> EpisodicVector:
    """Make environments in processes, if that saves more time than messages cost, or in a list."""
    name, num_envs, cores = setup.env_args["env_name"], setup.num_envs, len(os.sched_getaffinity(0))
    what, cost = f"1 environment {name}", 0.0
    if num_envs > 1:
        cost = _cost(setup)
        what = f"{num_envs} environments {name}, of {1e6 * cost:.0f} us a step,"
    saved = (num_envs - math.ceil(num_envs / cores)) * cost
    if saved > MESSAGES or cost == math.inf:
        try:
            env = ProcessVector(setup, timeout=timeout)
            log.info(f"{what} in {min(num_envs, cores)} processes")
            return env
        except ValueError as error:
            # It was made here, but the code that registers it does not run there.
            log.warning(f"{name} cannot be made in another process ({error}), so that it is slower")
    log.info(f"{what} in a list")
    return ListVector(setup)


def _cost(setup: Setup) -> float:
    """Measure the seconds of a step in another process: infinite if the environment hangs or
    crashes there, 0 if it raises an error, which a list will report."""
    if multiprocessing.current_process().daemon:
        return 0.0  # this process may have no children
    with closing(Child("fork", _measure, [setup._replace(num_envs=1)], *WORDING)) as child:
        result = child.receive() if wait([child], PATIENCE_S) else ChildProcessError("it hangs")
    if isinstance(result, ChildProcessError):
        log.warning(f"{setup.env_args['env_name']}: its first steps were not made: {result}")
        return math.inf
    return 0.0 if isinstance(result, Exception) else result


def _measure(channel: Channel, setup: Setup) -> None:
    """Send the median seconds of a step, as other programs may disturb some."""
    logging.disable()  # messages are logged when the environments are made later
    warnings.simplefilter("ignore")
    seconds = []
    with closing(ListVector(setup)) as one:
        obs = one.reset()
        one.action_space.seed(0)
        for _ in range(MEASURED):
            allowed = [obs[ACTION_MASK][0].astype(np.int8)] if ACTION_MASK in obs else []
            actions = [one.action_space.sample(*allowed)]
            before = time.perf_counter()
            obs = one.step(actions).obs
            seconds.append(time.perf_counter() - before)
    channel.send(statistics.median(seconds))
