"""Translates names of weights between robomimic and offrl.

A rule pairs robomimic's name of a weight with offrl's. ``{net}`` stands for a network and its
parents, ``{i}`` for a number, ``{key}`` for an observation. robomimic stores some weights under two
names; the second ones are ``ALIASES``, which are left out on reading and added on writing.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

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
DENOISER_RULES = (  # denoisers have their encoder elsewhere
    ("{top}.noise_pred_net.{rest}", "{top}.net.{rest}"),
    ("{top}.obs_encoder.{rest}", "{top}.nets.encoder.{rest}"),
)
PLANNER = "goal_network."  # offrl has no ``_vae`` in the names of one that is a VAE
MEMBER = r"(?P<top>\w+)\.(?P<i>\d+)\.(?P<rest>.+)"  # of an ensemble, a list in robomimic
# Second names of weights, and attention masks, which are constants.
ALIASES = re.compile(
    r"\.rnn\.per_step_net\.|\.attention\.mask$|\.obs_nets\.[^.]+\.nets\.([01]\.|2\.(?!weight|bias))"
)
GROUPS = {
    "top": r"(?P<top>\w+)",
    "net": r"(?P<net>\w[\w.]*?)",
    "group": r"(?P<group>\w+)",
    "key": r"(?P<key>[^.]+)",
    "i": r"(?P<i>\d+)",
    "leaf": "(?P<leaf>weight|bias)",
    "rest": "(?P<rest>.+)",
}


def weights_from_robomimic(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the weights of a robomimic ``state_dict`` to offrl's. Names without a rule stay."""
    plans_by_vae = any(name.startswith(f"{PLANNER}nets.encoder.nets.mlp.") for name in weights)
    renamed = {}
    for name, value in weights.items():
        if plans_by_vae and name.startswith(PLANNER):
            name = PLANNER + "_vae." + name.removeprefix(PLANNER)
        if not ALIASES.search(name):
            ours = _rename(name, DENOISER_RULES, VAE_RULES, RULES)
            renamed[ours.replace(".cores.condition.", ".cores.obs.")] = value
    return _stack_members(renamed)


def _stack_members(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Stack the weights of ``critic.0``, ... to an ensemble's, transposed, except encoders."""
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
    for name, values in members.items():
        stacked[name] = torch.stack([values[i].t() for i in sorted(values)])
    return stacked


def _members(name: str, value: Any, nets: Any) -> Iterator[tuple[str, Any]]:
    """Yield ``critic.0...``, ``critic.1...`` for an ensemble's weight; others unchanged."""
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
    """Return the weights of networks (``algo.nets``) by all of robomimic's names."""
    renamed: dict[str, Any] = {}
    for name, whole in nets.state_dict().items():
        for member, value in _members(name, whole, nets):
            theirs = _rename(member, RULES, to_robomimic=True)
            parent = name.rpartition(".")[0]
            if parent.endswith(".core.linear"):
                core = nets.get_submodule(parent.removesuffix(".linear"))
                theirs = theirs.replace(".nets.{i}.", f".nets.{_index_of_linear(core)}.")
            if re.match(r"\w+\.(posterior|decoder)\.", name):
                theirs = theirs.replace(".nets.encoder.nets.obs.", ".nets.encoder.nets.condition.")
            theirs = _rename(theirs, VAE_RULES, to_robomimic=True)
            if hasattr(nets[name.partition(".")[0]], "net"):
                theirs = _rename(theirs, DENOISER_RULES, to_robomimic=True)
            theirs = theirs.replace(f"{PLANNER}_vae.", PLANNER)
            renamed[theirs] = value
            renamed |= dict.fromkeys(_aliases(theirs, name, nets), value)
    return renamed | dict(_masks(nets))


def _rename(name: str, *tables: tuple[tuple[str, str], ...], to_robomimic: bool = False) -> str:
    """Apply the first matching rule of each table, one table after the other."""
    for rules in tables:
        for theirs, ours in rules:
            source, target = (ours, theirs) if to_robomimic else (theirs, ours)
            match = re.fullmatch(source.replace(".", r"\.").format_map(GROUPS), name)
            if match:
                found = match.groupdict()
                name = re.sub(r"\{(\w+)\}", lambda m: found.get(m[1], m[0]), target)  # noqa: B023
                break
    return name


def _index_of_linear(core: Any) -> int:
    """Find the place of a core's linear layer in robomimic's ``Sequential(backbone, [unsqueeze],
    [pool], flatten, linear)``."""
    return 2 if core.pool is None else 3 + (type(core).__name__ == "ScanCore")


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
    """Yield the causal masks ``[1, 1, T, T]``, which robomimic keeps among the weights."""
    for name, module in nets.named_modules():
        if hasattr(module, "context_length"):
            steps = module.context_length
            some = next(module.parameters())
            mask = some.new_ones(steps, steps).tril()[None, None]
            for i in range(len(module.blocks)):
                qkv = f"{name}.blocks.{i}.qkv.x"
                block = _rename(qkv, RULES, VAE_RULES, to_robomimic=True)
                yield block.replace(".nets.qkv.x", ".mask"), mask.clone()
