"""Settings that follow from the environment of an online training, and checks of these."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from offrl.acting.episode import as_flag
from offrl.algos.shared.masks import ACTION_MASK
from offrl.config import Config, ObservationConfig
from offrl.config.section import Map
from offrl.data.sampling import ACHIEVED, DESIRED, Judge
from offrl.envs import env_args_named, make_env
from offrl.envs.vector import VectorEnv
from offrl.envs.wrappers import has_channels_first, images, wrapped
from offrl.modules import allow_names
from offrl.registry import ALGOS
from offrl.specs import RGB, modalities
from offrl.tree import merge

PIXELS = 8  # least side of a two-dimensional array that may be an image


def env_args_of(config: Config, recorded: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the ``env_args`` of ``experiment.env``, with the arguments of the environment that a
    checkpoint's data was ``recorded`` in, if any."""
    experiment = config.experiment
    if not (experiment.env or recorded):
        raise ValueError('experiment.env: name the environment to learn in, such as "CartPole-v1"')
    allow_names(config.to_dict())
    update = experiment.env_meta_update_dict
    named: dict[str, Any] = {"env_name": experiment.env, "env_kwargs": {}}
    if recorded:
        named = {**recorded, **({"env_name": experiment.env} if experiment.env else {})}
    elif "type" not in update:
        named = env_args_named(experiment.env or "")
    wrappers = config.train.online.to_dict()["wrappers"]
    if wrappers is not None:
        named = named | {"wrappers": wrappers}
    return merge(named, update)


def fit(config: Config, envs: VectorEnv) -> None:
    """Complete the config by the environments: their observations, unless it names some, the kind
    of actions, and the number of epochs in ``train.num_steps``, each at least a round. Raises
    ``ValueError`` if the algorithm cannot learn such actions."""
    train, action_space = config.train, envs.action_space
    env_name = envs.env_args["env_name"]
    every = config.experiment.epoch_every_n_steps or train.num_steps or 1
    every = max(every, envs.num_envs * train.online.collect_steps)
    config.experiment.epoch_every_n_steps = every
    if train.num_steps is not None:
        train.num_epochs = math.ceil(train.num_steps / every)
    _check_actions(env_name, action_space)
    is_discrete = isinstance(action_space, spaces.Discrete)
    kind = "discrete" if is_discrete else "real-valued"
    algo_class, _ = ALGOS[config.algo_name](config.algo)
    if "rewards" not in algo_class.NEEDS and not algo_class.ASKS_EXPERT:
        raise ValueError(
            f"algo_name: {config.algo_name} learns nothing from the rewards of its own steps; name "
            "one that does, such as ppo, or learn from train.data, without train.num_steps"
        )
    if kind not in algo_class.ACTIONS:
        others = "dqn or ppo" if is_discrete else "sac, td3 or ppo"
        raise ValueError(
            f"{env_name}: its actions are {kind}, but {config.algo_name} learns "
            f"{algo_class.ACTIONS[0]} ones; use {others}, or another environment"
        )
    if modalities(config.observation).get("goal"):
        raise ValueError(
            "observation.modalities.goal: no goals are chosen while acting; a goal is an "
            "observation of the environment, such as desired_goal, in observation.modalities.obs "
            "(train.online.replay.hindsight_share chooses others for learning)"
        )
    key = config.train.action_keys[0]
    action_config = config.train.action_config[key]
    action_config.format = "discrete" if is_discrete else None
    action_config.num_actions = int(action_space.n) if is_discrete else None
    _fit_observation(envs, config.observation)
    for name in {*modalities(config.observation)["obs"]}:
        space = envs.observation_space[name]
        if not space.shape or isinstance(space, spaces.MultiDiscrete):
            raise ValueError(
                f"{env_name}: its observation {name!r} is {' '.join(str(space).split())}, but "
                "networks see vectors and images; make one of it with "
                'train.online.wrappers=["gymnasium.wrappers.FlattenObservation"]'
            )


def _check_actions(env_name: str, action_space: Any) -> None:
    """Raise ``ValueError`` unless actions are ``Discrete(n)`` or a bounded vector."""
    if isinstance(action_space, spaces.Discrete):
        is_known = action_space.start == 0
    else:
        is_vector = isinstance(action_space, spaces.Box) and len(action_space.shape) == 1
        is_known = is_vector and action_space.is_bounded() and action_space.dtype.kind == "f"
    if not is_known:
        raise ValueError(
            f"{env_name}: its actions are {action_space}; offrl acts with Discrete(n), counted "
            "from 0, or a vector with bounds, Box(low, high, (A,), float): name your own wrapper "
            "(gymnasium.ActionWrapper) in train.online.wrappers that takes one of these"
        )


def _fit_observation(envs: VectorEnv, observation: Any) -> None:
    obs_space: Any = envs.observation_space
    missing = {key for group in modalities(observation).values() for key in group} - {*obs_space}
    own = ObservationConfig().modalities.obs
    if missing and observation.modalities.obs != own:
        raise ValueError(
            f"observation.modalities.obs: the environment shows no {min(missing)}; it shows "
            + ", ".join(obs_space)
        )
    if missing:
        chosen: dict[str, list[str]] = {modality: [] for modality in own}
        for key, space in obs_space.items():
            if key != ACTION_MASK:
                # It may be an image in some form.
                is_2d = isinstance(space, spaces.Box) and len(space.shape) > 1
                is_rgb = is_2d and (space.dtype == np.uint8 or sorted(space.shape)[-2] >= PIXELS)
                chosen["rgb" if is_rgb else "low_dim"].append(key)
        observation.modalities.obs = chosen
    for key in observation.modalities.obs.get("rgb", []):
        seen: Any = obs_space[key]
        if seen.dtype != np.uint8 or len(seen.shape) != 3 or seen.shape[-1] not in RGB.CHANNELS:
            remedy = _remedy(key, seen, envs.env_args.get("wrappers") or [])
            raise ValueError(
                f"{envs.env_args['env_name']}: its observation {key!r} is {seen.dtype} "
                f"{[*seen.shape]}, and images are uint8 [H, W, C] with 3, 1 or 4 channels; "
                f"{remedy}. If it is no image, observation.modalities.obs.low_dim=[{key}] says so"
            )
    # The default core's feature maps have a pixel per 32 x 32 of an image; one is too few.
    for kind in ("rgb", "depth"):
        keys = observation.modalities.obs.get(kind, [])
        is_small = any(max(obs_space[key].shape[:2]) <= 32 for key in keys)
        if is_small and observation.encoder[kind] == ObservationConfig().encoder[kind]:
            observation.encoder[kind].core_kwargs = Map(backbone_class="ShallowConv")


def _remedy(key: str, space: Any, wrappers: Sequence[Any]) -> str:
    """Write how to make an image of an observation, after the present wrappers."""
    has_channels = len(space.shape) == 3 and {space.shape[0], space.shape[-1]} & {*RGB.CHANNELS}
    is_bounded = isinstance(space, spaces.Box) and space.is_bounded()
    if is_bounded and (has_channels or len(space.shape) == 2):
        return f"set train.online.wrappers={json.dumps([*wrappers, images([key])])}"
    return (
        "make one of it with a gymnasium.ObservationWrapper of your own in train.online.wrappers, "
        "or of a stack of frames by showing the last one alone, and train.frame_stack"
    )


def asked_obs_keys(config: Config) -> list[str] | None:
    """List the observations that the config names; ``None``: all, which experts need."""
    algo_class, _ = ALGOS[config.algo_name](config.algo)
    named = modalities(config.observation).get("obs", {})
    is_default = named == modalities(ObservationConfig())["obs"]
    return None if is_default or algo_class.ASKS_EXPERT else [*named]


def image_wrappers(config: Config, obs_space: Any) -> list[dict[str, Any]]:
    """Return the wrapper that moves images' channels last, if any come first."""
    named = modalities(config.observation)["obs"] if asked_obs_keys(config) else {}
    first = [k for k, x in obs_space.items() if x.dtype == np.uint8 and has_channels_first(x)]
    keys = [key for key in first if not named or named.get(key) == "rgb"]
    return [images(keys)] if keys else []


def with_images(env: gymnasium.Env, config: Config) -> gymnasium.Env:
    """Wrap an environment as the config says, unless it has wrappers, and move channels last."""
    if not env.get_wrapper_attr("serialize")().get("wrappers"):
        env = wrapped(env, config.train.online.to_dict()["wrappers"] or [])
    return wrapped(env, image_wrappers(config, env.observation_space))


def clipped(actions: np.ndarray, space: Any) -> np.ndarray:
    """Limit actions to the bounds of their space; discrete ones stay as they are."""
    return actions if isinstance(space, spaces.Discrete) else actions.clip(space.low, space.high)


def action_statistics(action_space: Any, key: str) -> dict[str, dict[str, np.ndarray]]:
    """Return statistics that scale the bounds of actions to [-1, 1]; none for discrete actions."""
    if isinstance(action_space, spaces.Discrete):
        return {}
    low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
    return {key: {"scale": (high / 2 - low / 2)[None], "offset": (high / 2 + low / 2)[None]}}


def judge_of(env_args: Mapping[str, Any], obs_keys: Sequence[str]) -> Judge:
    """Return the function by which an environment judges goals. ``ValueError`` if it has none, or
    if the desired goal is not in ``obs_keys``, which the policy sees."""
    what, env = "train.online.replay.hindsight_share", make_env(env_args)
    shown: Any = env.observation_space
    missing = {ACHIEVED, DESIRED} - {*shown}
    if missing or not env.has_wrapper_attr("compute_reward"):
        lacks = min(missing) if missing else "compute_reward(achieved_goal, desired_goal, info)"
        raise ValueError(
            f"{what}: {env_args['env_name']} has no {lacks}; set it to 0, or use an environment "
            "with gymnasium-robotics' goals"
        )
    if DESIRED not in obs_keys:
        raise ValueError(
            f"observation.modalities.obs: lacks {DESIRED}, which is replaced in hindsight ({what})"
        )
    compute_reward = env.get_wrapper_attr("compute_reward")
    has_ends = env.has_wrapper_attr("compute_terminated")
    terminates = env.get_wrapper_attr("compute_terminated") if has_ends else None

    def judge(achieved: np.ndarray, desired: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        rewards = np.asarray(compute_reward(achieved, desired, {}))
        is_one_each = rewards.shape == achieved.shape[:1] and rewards.dtype.kind in "biuf"
        if not (is_one_each and np.isfinite(rewards).all()):
            raise ValueError(
                f"{env_args['env_name']}: compute_reward returned {rewards!r:.80} for "
                f"{len(achieved)} goals; give a finite number for each"
            )
        if terminates is None:
            return rewards, None
        # One goal at a time, as gymnasium-robotics takes no more.
        ends = [terminates(*pair, {}) for pair in zip(achieved, desired, strict=True)]
        return rewards, np.array([as_flag(end, "compute_terminated") for end in ends])

    return judge
