"""Libraries of online RL that offrl is compared with."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from peers import Peer

STABLE_BASELINES3 = Peer(
    "stable-baselines3==2.9.0",
    needs=(),
    unused=("pandas", "matplotlib", "matplotlib.figure", "matplotlib.pyplot"),
)
RLLIB = Peer(
    "ray==2.60.0",
    needs=(
        "absl-py==2.5.1",
        "attrs==26.1.0",
        "dm-tree==0.1.9",
        "gymnasium==1.2.2",
        "lz4==4.4.5",
        "ormsgpack==1.13.1",
        "pandas==2.2.3",
        "python-dateutil==2.9.0.post0",
        "pytz==2026.6",
        "six==1.17.0",
        "tensorboardX==2.6.4",
        "tzdata==2026.6",
        "wrapt==2.5.2",
    ),
    unused=(),
)


def sb3_model(case: str, settings: Mapping[str, Any], seed: int = 0) -> Any:
    """A model that has not learned yet. ``settings`` are those of ``bare_online``; they may have
    ``layer_dims``."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.noise import NormalActionNoise

    s = settings
    envs = make_vec_env(s["env_id"], s.get("num_envs", 1), seed=seed)
    options = {"gamma": s["discount"], "learning_rate": s["lr"]}
    if case in ("ppo", "a2c"):
        options |= {"n_steps": s["collect_steps"], "gae_lambda": s["gae_lambda"]}
    else:
        options |= {"batch_size": s["batch_size"], "buffer_size": s["capacity"]}
        options |= {"train_freq": s["collect_steps"], "gradient_steps": s["num_updates"]}
        options |= {"learning_starts": s["random_steps"]}
        options |= {"policy_kwargs": {"net_arch": s.get("layer_dims", [256, 256])}}
    if case == "ppo":
        options |= {"batch_size": s["batch_size"], "n_epochs": s["num_epochs"]}
    elif case == "dqn":
        options |= {"target_update_interval": 10}
    elif case == "td3":
        noise = np.full(envs.action_space.shape, s["exploration"])
        options |= {"action_noise": NormalActionNoise(np.zeros_like(noise), noise)}
    model = getattr(sb3, case.upper())("MlpPolicy", envs, seed=seed, device="cpu", **options)
    if case == "dqn":  # by steps; its own schedule would end with each call of ``learn``
        span, final = s["explored_steps"], s["final_epsilon"]
        model.exploration_schedule = lambda _: max(
            final, 1 - (1 - final) * model.num_timesteps / span
        )
    return model


def sb3_training(case: str, settings: Mapping[str, Any]) -> Callable[[int], float]:
    """Goes on by so many steps, as repeated calls of ``learn``, and gives the mean return of the
    last 20 episodes."""
    model = sb3_model(case, settings)

    def train(num_steps: int) -> float:
        model.learn(num_steps, reset_num_timesteps=False)
        returns = [episode["r"] for episode in list(model.ep_info_buffer)[-20:]]
        return float(np.mean(returns)) if returns else math.nan

    return train


def rllib_impala(settings: Mapping[str, Any]) -> Callable[[float], tuple[int, float, float]]:
    """Goes on for so many seconds, and gives the number of steps that were learned from, the
    seconds, and the mean return. Its explorer is a process, its learner a thread of this one."""
    os.environ["PYTHONPATH"] = str(RLLIB.folder)  # of the processes that Ray starts
    import ray
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    s = settings
    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(address="local", num_cpus=2, **options)
    model = DefaultModelConfig(
        fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
    )
    algorithm = (
        IMPALAConfig()
        .environment(s["env_id"])
        .env_runners(
            num_env_runners=1,
            num_envs_per_env_runner=s["num_envs"],
            rollout_fragment_length=s["collect_steps"],
            gym_env_vectorize_mode="vector_entry_point",
        )
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=s["num_envs"] * s["collect_steps"],
            gamma=s["discount"],
            lr=s["lr"],
            opt_type="rmsprop",
            vf_loss_coeff=s["vf_coef"],
            entropy_coeff=s["ent_coef"],
            grad_clip=s["max_norm"],
        )
        .rl_module(model_config=model)
        .reporting(min_time_s_per_iteration=0.5, min_sample_timesteps_per_iteration=0)
        .build_algo()
    )

    returned = math.nan

    def go_on(seconds: float) -> tuple[int, float, float]:
        nonlocal returned
        begun, first = time.perf_counter(), None
        while first is None or time.perf_counter() - begun < seconds:
            results = algorithm.train()
            learned = results.get("learners", {}).get("__all_modules__", {})
            steps = learned.get("num_env_steps_trained_lifetime")
            returned = float(results["env_runners"].get("episode_return_mean", returned))
            if first is None and steps is not None:  # until then it starts
                first, begun = steps, time.perf_counter()
        took = time.perf_counter() - begun
        return int(steps - first), took, returned

    return go_on
