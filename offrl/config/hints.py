"""Messages on unknown keys of a config, with the keys that were probably meant."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from offrl.config.content import place
from offrl.registry import ALGO_CONFIGS

# Words of other toolkits, and the ends of the dotted paths of offrl's keys for the same thing.
_SAME = {
    "gamma discount_factor": "discount",
    "lr learning_rate": "learning_rate.initial",
    "actor_lr policy_lr actor_learning_rate": (
        "actor.learning_rate.initial policy.learning_rate.initial"
    ),
    "critic_lr qf_lr critic_learning_rate": "critic.learning_rate.initial",
    "weight_decay": "regularization.L2",
    "tau polyak soft_target_tau": "target_tau",
    "hidden_sizes hidden_size hidden_dims hidden_dim hidden_units hidden_layers net_arch": (
        "actor_layer_dims actor.layer_dims policy_layer_dims layer_dims"
    ),
    "num_steps total_steps max_steps total_timesteps max_timesteps": "train.num_steps",
    "n_steps steps train_steps gradient_steps epochs n_epochs max_epochs": "train.num_epochs",
    "bs minibatch_size": "train.batch_size",
    "n_envs": "online.num_envs",
    "buffer_size replay_size buffer_capacity": "replay.capacity",
    "learning_starts start_timesteps": "online.random_steps",
    "n_critics num_critics num_qs": "ensemble.n",
    "expectile iql_tau": "vf_quantile",
    "grad_clip grad_clip_norm clip_grad_norm": "train.max_grad_norm",
    "device": "train.cuda",
    "n_obs_steps": "observation_horizon",
    "n_action_steps": "action_horizon",
    "chunk_size": "prediction_horizon",
}
WORDS = {word: ends.split() for words, ends in _SAME.items() for word in words.split()}


def unknown_keys(keys: Sequence[tuple], known: Mapping[str, Any]) -> Iterator[str]:
    """Write messages on unknown keys and on what may be meant, one for all keys with one hint.

    keys: the path of each key. known: the config with all the keys that there are.
    """
    paths, algo_name = [*_dotted(known)], known.get("algo_name")
    of_algo = [key for key in keys if key[0] == "algo"]
    others = ", ".join(_algorithms_with(of_algo)) if of_algo else ""
    with_hint: dict[str, list[str]] = {}
    for key in keys:
        hint = _hint(key, paths, algo_name)
        if others and key in of_algo:
            hint = f" {algo_name} has no such, but {others}; correct algo_name, or leave them out."
        with_hint.setdefault(hint, []).append(place(*key))
    for hint, names in with_hint.items():
        yield f"{', '.join(names)}: unknown key{'s' if names[1:] else ''}.{hint}"


def _algorithms_with(keys: Sequence[tuple]) -> list[str]:
    """List the algorithms whose section has all of these keys."""
    wanted = {".".join(map(str, key[1:])) for key in keys}
    sections = {name: ALGO_CONFIGS[name]().to_dict() for name in ALGO_CONFIGS.names()}
    return [name for name, section in sections.items() if wanted <= {*_dotted(section)}]


def _hint(key: tuple, paths: Sequence[str], algo_name: str | None) -> str:
    """Guess what was meant: offrl's word for it, the same name in another section, or a name that
    looks alike, first in the same section. Else list the names of that section."""
    *above, name = map(str, key)
    words = WORDS.get(name, [])
    for end in (*words, name):
        same = [path for path in paths if f".{path}".endswith(f".{end}")]
        if same:
            return f" Did you mean {' or '.join(same[:3])}?"
    if words:
        return f" {algo_name or 'This file'} has no {words[-1]}."
    anywhere = {path.split(".")[-1]: path for path in reversed(paths)}
    siblings = {path.split(".")[-1]: path for path in paths if path.split(".")[:-1] == above}
    for names, cutoff in ((siblings, 0.75), (anywhere, 0.8), (siblings, 0.6)):
        if alike := difflib.get_close_matches(name, names, n=1, cutoff=cutoff):
            return f" Did you mean {names[alike[0]]}?"
    known = f" Known here: {', '.join(siblings)}." if siblings else ""
    return known + (" --ignore-unknown trains without." if algo_name else "")


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
