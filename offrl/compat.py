"""robomimic's formats: names of weights, old config keys, checkpoints. Nothing else knows them.

A rule gives robomimic's name of a weight and ours, with ``{net}`` (a network and what is above the
names here), ``{i}`` (a number), ``{key}`` (an observation) and ``{rest}``. robomimic stores some
weights under two names; the second ones are ``ALIASES``, left out on the way in, written on the
way out.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)

CORE = "{net}.nets.encoder.nets.{group}.obs_nets.{key}"
OUR_CORE = "{net}.encoder.cores.{group}.{key}.core"
BLOCK = "{net}.nets.transformer.nets.transformer.{i}.nets"
VAE_RULES = (
    ("{top}._vae.nets.encoder.{rest}", "{top}.posterior.{rest}"),
    ("{top}._vae.nets.decoder.{rest}", "{top}.decoder.{rest}"),
    ("{top}._vae.nets.prior.prior_module.{rest}", "{top}.prior.net.{rest}"),
    ("{top}._vae.nets.prior.prior_params.{rest}", "{top}.prior.params.{rest}"),
)
RULES = (
    ("{net}.nets.mlp._model.{rest}", "{net}.trunk.layers.{rest}"),
    ("{net}.nets.decoder.nets.{rest}", "{net}.head.{rest}"),
    ("log_entropy_weight.{rest}", "entropy.{rest}"),
    ("log_cql_weight.{rest}", "cql.{rest}"),
    ("{net}.nets.rnn.nets.{rest}", "{net}.trunk.rnn.{rest}"),
    ("{net}.nets.embed_encoder.{rest}", "{net}.trunk.embed.{rest}"),
    ("{net}.nets.embed_ln.{rest}", "{net}.trunk.embed_norm.{rest}"),
    ("{net}.nets.embed_timestep.{rest}", "{net}.trunk.position_table.{rest}"),
    ("{net}.params.embed_timestep", "{net}.trunk.positions"),
    ("{net}.nets.transformer.nets.output_ln.{rest}", "{net}.trunk.output_norm.{rest}"),
    (BLOCK + ".attention.nets.qkv.{rest}", "{net}.trunk.blocks.{i}.qkv.{rest}"),
    (BLOCK + ".attention.nets.output.{rest}", "{net}.trunk.blocks.{i}.output.{rest}"),
    (BLOCK + ".ln1.{rest}", "{net}.trunk.blocks.{i}.norm1.{rest}"),
    (BLOCK + ".ln2.{rest}", "{net}.trunk.blocks.{i}.norm2.{rest}"),
    (BLOCK + ".mlp.{rest}", "{net}.trunk.blocks.{i}.mlp.{rest}"),
    (CORE + ".backbone._base_block.{rest}", OUR_CORE + ".backbone.stem.{rest}"),
    (CORE + ".backbone._conv_blocks.{rest}", OUR_CORE + ".backbone.blocks.{rest}"),
    (CORE + ".backbone._film_layers.{i}.lang_proj.{leaf}", OUR_CORE + ".backbone.films.{i}.{leaf}"),
    (CORE + ".backbone.nets.{rest}", OUR_CORE + ".backbone.{rest}"),
    (CORE + ".pool.{rest}", OUR_CORE + ".pool.{rest}"),
    (CORE + ".nets.{i}.{leaf}", OUR_CORE + ".linear.{leaf}"),
)
ROBOMIMIC_ALGOS = ("bc", "bcq", "cql", "iql", "td3_bc")  # of those that offrl has
MEMBER = r"(?P<top>\w+)\.(?P<i>\d+)\.(?P<rest>.+)"  # of an ensemble, a list in robomimic
# Second names of weights, and attention masks, which are constants.
ALIASES = re.compile(
    r"\.rnn\.per_step_net\.|\.attention\.mask$|\.obs_nets\.[^.]+\.nets\.([01]\.|2\.(?!weight|bias))"
)
PATTERNS = {
    "top": r"\w+",
    "net": r"\w[\w.]*?",
    "group": r"\w+",
    "key": r"[^.]+",
    "i": r"\d+",
    "leaf": "weight|bias",
    "rest": ".+",
}


def weights_from_robomimic(weights: Mapping[str, Any]) -> dict[str, Any]:
    """A robomimic ``state_dict`` under our names; names without a rule stay as they are."""
    renamed = {}
    for name, value in weights.items():
        if not ALIASES.search(name):
            ours = _rename(_rename(name, VAE_RULES), RULES)
            renamed[ours.replace(".cores.condition.", ".cores.obs.")] = value
    return _stack_members(renamed)


def _stack_members(weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights of ``critic.0``, ``critic.1``, ... as those of one ensemble, whose matrices are
    transposed; encoders apart."""
    stacked: dict[str, Any] = {}
    members: dict[str, dict[int, Any]] = {}
    for name, value in weights.items():
        match = re.fullmatch(MEMBER, name)
        if match is None:
            stacked[name] = value
        elif match["rest"].startswith("encoder."):
            rest = match["rest"].removeprefix("encoder.")
            stacked[f"{match['top']}.encoders.{match['i']}.{rest}"] = value
        else:
            members.setdefault(f"{match['top']}.{match['rest']}", {})[int(match["i"])] = value
    if members:
        import torch

        for name, values in members.items():
            stacked[name] = torch.stack([values[i].t() for i in sorted(values)])
    return stacked


def _members(name: str, value: Any, nets: Any) -> Iterator[tuple[str, Any]]:
    """The weights ``critic.0...``, ``critic.1...`` that an ensemble's stands for; others alone."""
    top, _, rest = name.partition(".")
    if not hasattr(nets[top], "num_critics"):
        yield name, value
    elif rest.startswith("encoders."):
        _, i, rest = rest.split(".", 2)
        yield f"{top}.{i}.encoder.{rest}", value
    else:
        for number, member in enumerate(value):
            yield f"{top}.{number}.{rest}", member.t()


def weights_to_robomimic(nets: Any) -> dict[str, Any]:
    """The weights of an algorithm's networks (``algo.nets``) under all of robomimic's names."""
    renamed: dict[str, Any] = {}
    weights = (
        (name, member, part)
        for name, value in nets.state_dict().items()
        for member, part in _members(name, value, nets)
    )
    for name, member, value in weights:
        theirs = _rename(member, RULES, to_robomimic=True)
        parent, _, leaf = name.rpartition(".")
        if parent.endswith(".core.linear"):
            core = nets.get_submodule(parent.removesuffix(".linear"))
            theirs = theirs.replace(".nets.{i}.", f".nets.{_index_of_linear(core)}.")
        if re.match(r"\w+\.(posterior|decoder)\.", name):
            theirs = theirs.replace(".nets.encoder.nets.obs.", ".nets.encoder.nets.condition.")
        theirs = _rename(theirs, VAE_RULES, to_robomimic=True)
        renamed[theirs] = value
        renamed |= dict.fromkeys(_aliases(theirs, name, nets), value)
    return renamed | dict(_masks(nets))


def _rename(name: str, rules: tuple[tuple[str, str], ...], to_robomimic: bool = False) -> str:
    for theirs, ours in rules:
        source, target = (ours, theirs) if to_robomimic else (theirs, ours)
        match = re.fullmatch(_pattern(source), name)
        if match:
            found = match.groupdict()
            return re.sub(r"\{(\w+)\}", lambda m: found.get(m[1], m[0]), target)  # noqa: B023
    return name


def _pattern(template: str) -> str:
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.sub(r"\{(\w+)\}", lambda m: f"(?P<{m[1]}>{PATTERNS[m[1]]})", escaped)


def _index_of_linear(core: Any) -> int:
    """Its place in robomimic's ``Sequential(backbone, [unsqueeze], [pool], flatten, linear)``."""
    pooling = 0 if core.pool is None else 1 + (type(core).__name__ == "ScanCore")
    return 2 + pooling


def _aliases(theirs: str, ours: str, nets: Any) -> Iterator[str]:
    net = ours.partition(".trunk.")[0].partition(".head.")[0]
    if ".encoder." not in ours and (".trunk." in ours or ".head." in ours):
        trunk = nets.get_submodule(f"{net}.trunk")
        if hasattr(trunk, "rnn"):
            step = ".nets.rnn.per_step_net"
            head = f"{step}.1.nets." if len(trunk.layers) else f"{step}.nets."
            if ".nets.mlp._model." in theirs:
                yield theirs.replace(".nets.mlp._model.", f"{step}.0._model.")
            if ".nets.decoder.nets." in theirs:
                yield head.join(theirs.rsplit(".nets.decoder.nets.", 1))
    if ".core.backbone." in ours:
        yield theirs.replace(".backbone.", ".nets.0.")
    if ".core.pool." in ours:
        core = nets.get_submodule(ours.partition(".pool.")[0])
        yield theirs.replace(".pool.", f".nets.{_index_of_linear(core) - 2}.")


def _masks(nets: Any) -> Iterator[tuple[str, Any]]:
    """robomimic's attention keeps its causal mask ``[1, 1, T, T]`` among the weights."""
    for name, module in nets.named_modules():
        if hasattr(module, "context_length"):
            steps = module.context_length
            some = next(module.parameters())
            mask = some.new_ones(steps, steps).tril()[None, None]
            for i in range(len(module.blocks)):
                block = _rename(f"{name}.blocks.{i}.qkv.x", RULES, to_robomimic=True)
                block = _rename(block, VAE_RULES, to_robomimic=True)
                yield block.replace(".nets.qkv.x", ".mask"), mask.clone()


# -- configs --------------------------------------------------------------------------------------

REMOVED = ("experiment.mse", "train.shuffled_obs_key_groups", "train.hdf5_normalize_actions")
MOVED_INTO_CORE = ("feature_dimension", "pool_class", "pool_kwargs")  # before robomimic 0.3


def upgrade_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A complete robomimic config (0.2 to 0.5) with the keys of today; any other as it is."""
    train = config.get("train", {})
    if not isinstance(train, Mapping) or "hdf5_use_swmr" not in train:
        return config
    config = json.loads(json.dumps(config))
    if "mask_padded_steps" not in train:  # robomimic's own, not one that offrl has written
        config["train"]["mask_padded_steps"] = False  # robomimic trains on padded steps
        decoder = config.get("algo", {}).get("vae", {}).get("decoder", {})
        if decoder.get("is_conditioned") is False:
            decoder["is_conditioned"] = True  # as robomimic's always is, whatever this says
    dropped = []
    for path in REMOVED:
        section, _, key = path.partition(".")
        if config.get(section, {}).pop(key, None) is not None:
            dropped.append(path)
    if dropped:
        log.warning("robomimic's config keys without a meaning here: %s", ", ".join(dropped))
    for encoder in _encoders(config.get("observation", {})):
        moved = {key: encoder.pop(key) for key in MOVED_INTO_CORE if key in encoder}
        if encoder.get("core_class"):
            encoder["core_kwargs"] = {**(encoder.get("core_kwargs") or {}), **moved}
        for key in ("core_kwargs", "obs_randomizer_kwargs"):
            encoder[key] = encoder.get(key) or {}
    return config


def _encoders(observation: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every modality's encoder config, of hierarchies' parts too."""
    for key, value in observation.items():
        if key == "encoder":
            yield from value.values()
        elif isinstance(value, dict):
            yield from _encoders(value)


# -- checkpoints ----------------------------------------------------------------------------------


def upgrade_checkpoint(content: dict[str, Any]) -> dict[str, Any]:
    """A robomimic checkpoint in our layout; one of ours as it is."""
    if "provenance" in content:
        return content
    model = content["model"]
    stats = {
        "obs": _statistics(content.get("obs_normalization_stats")),
        "actions": _statistics(content.get("action_normalization_stats")),
    }
    nets = weights_from_robomimic(model.get("nets", model))
    return content | {"model": {"nets": nets, "normalization": stats}}


def _statistics(stats: Mapping[str, Any] | None) -> dict[str, Any]:
    """``{key: {"offset", "scale"}}``, which were ``mean`` and ``std`` before robomimic 0.5."""
    return {
        key: {
            "scale": value.get("scale", value.get("std")),
            "offset": value.get("offset", value.get("mean")),
        }
        for key, value in (stats or {}).items()
    }


def _check_robomimic_has(algo_name: str, config: Mapping[str, Any]) -> None:
    """``ValueError`` for algorithms and combinations that robomimic does not build."""
    algo = config["algo"]
    if any(c.get("format") == "discrete" for c in config["train"]["action_config"].values()):
        raise ValueError("robomimic has no policy for discrete actions")
    if algo_name not in ROBOMIMIC_ALGOS:
        raise ValueError(f"robomimic has no {algo_name}; it has {', '.join(ROBOMIMIC_ALGOS)}")
    heads, trunks = (
        [name for name in names if algo.get(name, {}).get("enabled")]
        for names in (("gaussian", "vae"), ("rnn", "transformer"))
    )
    if heads and trunks:
        raise ValueError(
            f"robomimic has no policy with algo.{heads[0]}.enabled and algo.{trunks[0]}.enabled"
        )
    if "gaussian" in heads and algo["gaussian"]["use_tanh"]:
        raise ValueError("robomimic has no policy with algo.gaussian.use_tanh")


def export_checkpoint(content: Mapping[str, Any], nets: Any) -> dict[str, Any]:
    """One of our checkpoints, whose networks are ``nets``, as robomimic's ``save_model`` would
    have written it, without the state of the optimizers."""
    if "provenance" not in content:
        raise ValueError("this is robomimic's own checkpoint already")
    _check_robomimic_has(content["algo_name"], json.loads(content["config"]))
    optimizers, schedules = {}, {}
    for name, optimizer in content["model"]["optimizers"].items():
        fresh = {"state": {}, "param_groups": optimizer["param_groups"]}
        # One for each critic.
        members = getattr(nets[name], "num_critics", None)
        optimizers[name] = fresh if members is None else [fresh] * members
        schedules[name] = None if members is None else [None] * members
    statistics = {
        name: {
            key: {kind: value.tolist() for kind, value in stats.items()}
            for key, stats in content[name].items()
        }
        for name in ("obs_normalization_stats", "action_normalization_stats")
        if content[name]
    }
    shapes = content["shape_metadata"]["all_shapes"]
    if "obs_normalization_stats" in statistics:  # robomimic wants some for every observation
        import numpy as np

        for key, shape in shapes.items():
            identity = {"offset": np.zeros((1, *shape)), "scale": np.ones((1, *shape))}
            plain = {kind: value.tolist() for kind, value in identity.items()}
            statistics["obs_normalization_stats"].setdefault(key, plain)
    env_name = (content["env_metadata"] or {}).get("env_name", "")
    state = content["variable_state"]
    return {
        "model": {
            "nets": weights_to_robomimic(nets),
            "optimizers": optimizers,
            "lr_schedulers": schedules,
        },
        "config": content["config"],
        "algo_name": content["algo_name"],
        "env_metadata": content["env_metadata"],
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
