"""Converts config files of robomimic 0.2 to 0.5 to the present keys."""

import json
import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

log = logging.getLogger(__name__)
_say_once = cache(log.warning)

DIFFUSION = "diffusion_policy"
FAST = "offrl_fast"  # offrl's own key of env_kwargs: use its fast forms of a simulator's code

ROBOSUITE = (1, "robosuite")  # types of its tasks in env_args

# Keys in every robomimic file of any version; a file of offrl's has only a few of these.
EXPERIMENT_KEYS = (
    "name validate logging save epoch_every_n_steps validation_epoch_every_n_steps env "
    "additional_envs render render_video keep_all_videos video_skip rollout"
).split()
TRAIN_KEYS = (
    "data output_dir num_data_workers hdf5_cache_mode hdf5_use_swmr hdf5_normalize_obs "
    "hdf5_filter_key seq_length dataset_keys goal_mode cuda batch_size num_epochs seed"
).split()
KEYS = [f"experiment.{key}" for key in EXPERIMENT_KEYS] + [f"train.{key}" for key in TRAIN_KEYS]
REMOVED = {"experiment": ["mse"], "train": ["shuffled_obs_key_groups", "hdf5_normalize_actions"]}
EMA_KEYS = ("enabled", "power", "max_decay")
FORKS_WARMUP = 10_000  # training steps, where scheduler_type is constant_with_warmup
MOVED_INTO_CORE = ("feature_dimension", "pool_class", "pool_kwargs")  # before robomimic 0.3


def upgrade_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a robomimic config (0.2 to 0.5) to the present keys; of others, only ``algo.ema`` of
    a diffusion policy and the warm-up of forks."""
    if config.get("algo_name") == DIFFUSION:
        config = _with_ema_of_training(config)
    if isinstance(config.get("algo"), dict):
        config = {**config, "algo": _with_forks_warmup(config["algo"])}
    if not _is_robomimics(config):
        return config
    upgraded = json.loads(json.dumps(config, default=str))  # paths, in calls from Python
    if "mask_padded_steps" not in upgraded["train"]:  # else written by offrl or a user
        upgraded["train"]["mask_padded_steps"] = False  # robomimic trains on padded steps
        for decoder in _sections(upgraded.get("algo"), "decoder"):
            if decoder.get("is_conditioned") is False:
                decoder["is_conditioned"] = True  # as robomimic's always is
        if upgraded.get("algo_name") == "gl" and upgraded["train"]["seq_length"] == 1:
            # As in robomimic's template, whose subgoals lie beyond its samples.
            del upgraded["train"]["seq_length"]
    dropped = [
        f"{section}.{key}"
        for section, keys in REMOVED.items()
        for key in keys
        if upgraded[section].pop(key, None) is not None
    ]
    if dropped:
        log.warning("robomimic's config keys without a meaning here: %s", ", ".join(dropped))
    encoders = _sections(upgraded.get("observation"), "encoder")
    each = (e for by_modality in encoders for e in by_modality.values() if isinstance(e, dict))
    for encoder in each:
        for key in ("core_kwargs", "obs_randomizer_kwargs"):
            if encoder.get(key) is None:
                encoder[key] = {}
        moved = {key: encoder.pop(key) for key in MOVED_INTO_CORE if key in encoder}
        if encoder.get("core_class") and isinstance(encoder["core_kwargs"], dict):
            encoder["core_kwargs"].update(moved)
    return upgraded


def _with_ema_of_training(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move robomimic's keys from ``algo.ema`` to ``train.ema``; keys of forks stay. Raises
    ``ValueError`` if the two sections contradict each other."""
    algo, train = config.get("algo"), config.get("train", {})
    if not isinstance(algo, Mapping) or not isinstance(train, Mapping) or "ema" not in algo:
        return config
    theirs, ours = algo["ema"], train.get("ema", {})
    if theirs is None:
        raise ValueError("algo.ema: a map is needed, such as {enabled: false}, not None")
    if not isinstance(theirs, Mapping) or not isinstance(ours, Mapping):
        return config  # to be refused for what it is
    for key in theirs.keys() & ours.keys():
        if theirs[key] != ours[key]:
            raise ValueError(
                f"algo.ema.{key} is {theirs[key]!r} and train.ema.{key} {ours[key]!r}, which are "
                "the same key; leave one of them out"
            )
    moved = {key: value for key, value in theirs.items() if key in EMA_KEYS}
    stay = {key: value for key, value in theirs.items() if key not in EMA_KEYS}
    algo = {k: x for k, x in algo.items() if k != "ema"} | ({"ema": stay} if stay else {})
    return {**config, "algo": algo, "train": {**train, "ema": {**moved, **ours}}}


def _with_forks_warmup(section: dict[str, Any]) -> dict[str, Any]:
    """Convert the warm-ups of learning rates in a section to the present keys."""
    section = {k: _with_forks_warmup(x) if isinstance(x, dict) else x for k, x in section.items()}
    is_forks = section.get("scheduler_type") == "constant_with_warmup"
    if "warmup_steps" not in section and (is_forks or "num_warmup_steps" in section):
        steps = section.pop("num_warmup_steps", FORKS_WARMUP)
        section |= {"warmup_steps": steps, "step_every_batch": True}
    return section


def _is_robomimics(config: Mapping[str, Any]) -> bool:
    """Say whether a config has all ``KEYS``; warn if it has many of them."""
    sections = {name: config.get(name) for name in ("experiment", "train")}
    if not all(isinstance(section, Mapping) for section in sections.values() if section):
        return False  # to be refused for what it is
    has = {f"{name}.{key}" for name, section in sections.items() for key in section or ()}
    lacks = [path for path in KEYS if path not in has]
    has_many = "train.hdf5_use_swmr" in has or len(lacks) < len(KEYS) / 2
    if lacks and has_many and "train.mask_padded_steps" not in has:
        _say_once(
            "the config is read as offrl's, so that padded steps count for nothing "
            "(train.mask_padded_steps): some of its keys are robomimic's, but all of robomimic's "
            f"own files also have {', '.join(lacks)}"
        )
    return not lacks


def _sections(tree: Any, name: str) -> Iterator[dict[str, Any]]:
    """Yield the sections called ``name``, also those of a hierarchy's parts."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict):
            yield from [value] if key == name else _sections(value, name)


def is_robosuite(env_args: Mapping[str, Any] | None) -> bool:
    """Say whether ``env_args`` describe a robosuite task, by their ``type``."""
    return env_args is not None and env_args.get("type") in ROBOSUITE


def env_args_for_robomimic(env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``env_args`` for datasets and robomimic's checkpoints, without ``FAST``."""
    env_kwargs = {k: v for k, v in (env_args.get("env_kwargs") or {}).items() if k != FAST}
    return {**env_args, "env_kwargs": env_kwargs}
