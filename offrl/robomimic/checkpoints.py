"""robomimic's checkpoints, read and written."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from offrl.robomimic.configs import DIFFUSION, env_args_for_robomimic
from offrl.robomimic.weights import weights_from_robomimic, weights_to_robomimic
from offrl.tree import map_leaves

PLANNING = ("gl", "hbc", "iris")
ROBOMIMIC_ALGOS = ("bc", "bcq", "cql", DIFFUSION, *PLANNING, "iql", "td3_bc")
SHIFT = "ShiftRandomizer"  # which robomimic lacks; while a policy acts, it changes nothing
UNET = {  # whatever its configs say
    "diffusion_step_embed_dim": 256,
    "down_dims": [256, 512, 1024],
    "kernel_size": 5,
    "n_groups": 8,
}


def upgrade_checkpoint(content: dict[str, Any]) -> dict[str, Any]:
    """Convert a robomimic checkpoint to offrl's layout; return others unchanged."""
    if "provenance" in content or "normalization" in content["model"]:
        return content
    model = content["model"]
    stats = {
        "obs": _statistics(content.get("obs_normalization_stats")),
        "actions": _statistics(content.get("action_normalization_stats")),
    }
    if content["algo_name"] in PLANNING:
        stats["subgoals"] = {}  # never normalised in robomimic
    upgraded = upgrade_model(model) | {"normalization": stats}
    if content["algo_name"] == DIFFUSION:
        content = content | {"config": _with_real_sizes(content["config"], upgraded["nets"])}
    return content | {"model": upgraded}


def upgrade_model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the serialized form or ``state_dict`` of a robomimic algorithm to offrl's layout."""
    upgraded: dict[str, Any] = {"nets": _weights(model)}
    if model.get("ema"):
        averages = weights_from_robomimic(model["ema"])
        upgraded["ema"] = {"weights": averages, "num_steps": {}}
    return upgraded


def _with_real_sizes(config: str, weights: Mapping[str, Any]) -> str:
    """Set the sizes of the U-Net in a config by its weights, as robomimic ignores ``algo.unet``."""
    down = "policy.net.down_modules.{}.0.blocks.0.block.0.weight"
    levels = [weights[down.format(i)] for i in range(len(weights)) if down.format(i) in weights]
    time = weights.get("policy.net.diffusion_step_encoder.3.weight")
    if not levels or time is None:
        return config  # an invalid config, refused later
    content = json.loads(config)
    unet = content["algo"]["unet"]
    sizes = {
        "diffusion_step_embed_dim": len(time),
        "down_dims": [len(level) for level in levels],
        "kernel_size": levels[0].shape[-1],
    }
    is_robomimics = sizes.items() <= UNET.items()
    unet |= UNET if is_robomimics else sizes  # the number of groups is not in weights
    return json.dumps(content)


def _weights(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return all weights of an algorithm by offrl's names, with the names of parts as prefixes."""
    has_parts = "nets" not in model and all(isinstance(x, Mapping) for x in model.values())
    if not has_parts:
        return weights_from_robomimic(model.get("nets", model))
    return {f"{name}.{key}": x for name, part in model.items() for key, x in _weights(part).items()}


def _statistics(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``{key: {"offset", "scale"}}``, called ``mean`` and ``std`` before robomimic 0.5."""
    today = {"mean": "offset", "std": "scale"}
    return {
        key: {today.get(kind, kind): value for kind, value in kinds.items()}
        for key, kinds in (stats or {}).items()
    }


def _refusals(algo_name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the reasons why robomimic cannot build an algorithm with such a config."""
    algo, train = config["algo"], config["train"]
    if any(c.get("format") == "discrete" for c in train["action_config"].values()):
        yield "robomimic has no policy for discrete actions"
    if algo_name not in ROBOMIMIC_ALGOS:
        yield f"robomimic has no {algo_name}; it has {', '.join(ROBOMIMIC_ALGOS)}"
    if algo_name in PLANNING and train["frame_stack"] > 1:
        frames = train["frame_stack"]
        yield f"robomimic's planners see one frame, and this one sees train.frame_stack {frames}"
    if algo.get("latent_subgoal", {}).get("enabled"):
        yield "robomimic's latent subgoals (algo.latent_subgoal.enabled) do not work"
    place, algo = ("algo.actor", algo["actor"]) if "latent_subgoal" in algo else ("algo", algo)
    heads, trunks = (
        [f"{place}.{name}.enabled" for name in names if algo.get(name, {}).get("enabled")]
        for names in (("gaussian", "vae"), ("rnn", "transformer"))
    )
    if heads and trunks:
        yield f"robomimic has no policy with {heads[0]} and {trunks[0]}"
    if algo_name in PLANNING and train["hdf5_normalize_obs"]:
        yield (
            "robomimic's subgoals are never normalised, and this planner's are; train it with "
            "train.hdf5_normalize_obs=false"
        )
    if algo_name == DIFFUSION:
        sees_goals = any(config["observation"]["modalities"]["goal"].values())
        others = algo["scheduler"], algo["temporal_ensemble"]
        if algo["unet"] != {"enabled": True, **UNET} or others != (None, None) or sees_goals:
            yield (
                f"robomimic's diffusion policy has always a U-Net of these sizes, {UNET} "
                "(algo.unet), DDPM or DDIM (algo.scheduler null), algo.temporal_ensemble null, and "
                "no goals"
            )
    if f"{place}.transformer.enabled" in trunks and not algo["transformer"].get("causal", True):
        yield f"robomimic has no policy with {place}.transformer.causal false"
    if f"{place}.gaussian.enabled" in heads and algo["gaussian"]["use_tanh"]:
        yield f"robomimic has no policy with {place}.gaussian.use_tanh"


def export_checkpoint(content: Mapping[str, Any], nets: Any) -> dict[str, Any]:
    """Convert an offrl checkpoint, whose networks are ``nets``, to the form of robomimic's
    ``save_model``, without optimizers. If weights are averaged, ``nets`` should hold the averages,
    which are then the only weights. Raises ``ValueError`` if robomimic cannot load it."""
    if "provenance" not in content:
        raise ValueError("this is robomimic's own checkpoint already")
    config = json.loads(content["config"])
    for why in _refusals(content["algo_name"], config):
        raise ValueError(why)
    config["observation"] = _without_shifts(config["observation"])
    config["train"] = _with_places_of_data(config["train"])
    ema = config["train"].pop("ema", None)  # in ``algo`` of robomimic's diffusion policy
    if content["algo_name"] == DIFFUSION:
        config["algo"]["ema"] = {"enabled": ema["enabled"], "power": ema["power"] or 0.75}
    statistics = {
        name: map_leaves(lambda x: x.tolist(), content[name])
        for name in ("obs_normalization_stats", "action_normalization_stats")
        if content[name]
    }
    shapes = content["shape_metadata"]["all_shapes"]
    if "obs_normalization_stats" in statistics:  # robomimic needs some for each key
        for key, shape in shapes.items():
            offset, scale = np.zeros((1, *shape)).tolist(), np.ones((1, *shape)).tolist()
            identity = {"offset": offset, "scale": scale}
            statistics["obs_normalization_stats"].setdefault(key, identity)
    env_args = content["env_metadata"]
    env_name = (env_args or {}).get("env_name", "")
    state = content["variable_state"]
    return {
        "model": _exported(content["model"], nets),
        "config": json.dumps(config, indent=4),
        "algo_name": content["algo_name"],
        "env_metadata": env_args and env_args_for_robomimic(env_args),
        # robomimic joins the observations in the order of this map.
        "shape_metadata": content["shape_metadata"] | {"all_shapes": dict(sorted(shapes.items()))},
        "variable_state": {
            "epoch": state["epoch"],
            "best_valid_loss": state.get("best_valid_loss"),
            "best_return": {env_name: state.get("best_return")},
            "best_success_rate": {env_name: state.get("best_success_rate")},
        },
        **statistics,
    }


def _with_places_of_data(train: dict[str, Any]) -> dict[str, Any]:
    """Write where data is as robomimic's own trainings take it."""
    kept = {key: value for key, value in train.items() if key not in ("cache_gb", "cache_dir")}
    if train.get("hdf5_cache_mode") == "auto":
        kept["hdf5_cache_mode"] = "low_dim"
    return {**kept, "num_data_workers": train.get("num_data_workers") or 0}


def _without_shifts(section: Any) -> Any:
    """Leave ``SHIFT`` out of the encoders of a section."""
    if not isinstance(section, dict):
        return section
    section = {key: _without_shifts(value) for key, value in section.items()}
    names, options = (section.get(f"obs_randomizer_{what}") for what in ("class", "kwargs"))
    if names == SHIFT:
        section |= {"obs_randomizer_class": None, "obs_randomizer_kwargs": {}}
    elif isinstance(names, list) and SHIFT in names:
        section["obs_randomizer_class"] = [name for name in names if name != SHIFT]
        if isinstance(options, list):
            kept = (o for name, o in zip(names, options, strict=True) if name != SHIFT)
            section["obs_randomizer_kwargs"] = [*kept]
    return section


def _exported(model: Mapping[str, Any], nets: Any) -> dict[str, Any]:
    """Convert a serialized model to robomimic's form."""
    if "parts" in model:
        return {name: _exported(part, nets[name]) for name, part in model["parts"].items()}
    optimizers, schedules = {}, {}
    for name, optimizer in model["optimizers"].items():
        fresh = {"state": {}, "param_groups": optimizer["param_groups"]}
        # One for each critic.
        members = getattr(nets[name], "num_critics", None)
        optimizers[name] = fresh if members is None else [fresh] * members
        schedules[name] = None if members is None else [None] * members
    weights = weights_to_robomimic(nets)
    return {
        "nets": weights,
        **({"ema": weights} if "ema" in model else {}),
        "optimizers": optimizers,
        "lr_schedulers": schedules,
    }
