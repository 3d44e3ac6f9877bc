"""What a config may have meant by a key that it has not: errors for people."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from offrl.config.content import place
from offrl.registry import ALGO_CONFIGS

# Words of other toolkits, and the ends of the dotted paths that keys of the same meaning have here.
_SAME = {
    "gamma discount_factor": "discount",
    "lr learning_rate": "policy.learning_rate.initial learning_rate.initial",
    "actor_lr policy_lr": "actor.learning_rate.initial policy.learning_rate.initial",
    "actor_learning_rate": "actor.learning_rate.initial policy.learning_rate.initial",
    "critic_lr qf_lr critic_learning_rate": "critic.learning_rate.initial",
    "weight_decay": "regularization.L2",
    "tau polyak soft_target_tau": "target_tau",
    "hidden_sizes hidden_size hidden_dims hidden_dim hidden_units hidden_layers net_arch": (
        "actor_layer_dims actor.layer_dims policy_layer_dims layer_dims"
    ),
    "num_steps total_steps max_steps total_timesteps max_timesteps": "train.num_steps",
    "n_steps steps train_steps gradient_steps": "train.num_epochs",
    "epochs n_epochs max_epochs": "train.num_epochs",
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
    """Say of each key (its path) that there is none, and what may be meant; of several of a section
    with no such hint, once.

    known: the config with all the keys that there are.
    """
    paths, algo_name = [*_dotted(known)], known.get("algo_name")
    hints = {path: _hint(path, paths, algo_name) for path in keys}
    of_algo = [path for path in keys if path[0] == "algo"]
    if of_algo[1:] or not all(hints[path] for path in of_algo):
        others = ", ".join(_algorithms_with(of_algo))
        if others:
            yield (
                f"{_listed(of_algo)}. {algo_name} has no such, but {others}; correct algo_name, or "
                "leave them out."
            )
            hints = {path: hint for path, hint in hints.items() if path not in of_algo}
    unlike: dict[tuple, list[tuple]] = {}
    for path, hint in hints.items():
        if hint:
            yield f"{_listed([path])}.{hint}"
        else:
            unlike.setdefault(path[:-1], []).append(path)
    for section, together in unlike.items():
        siblings = ", ".join(_names(_above(section), paths))
        also = f" Known here: {siblings}." if siblings else ""
        also += " --ignore-unknown trains without." if algo_name else ""
        yield f"{_listed(together)}.{also}"


def _listed(keys: Sequence[tuple]) -> str:
    named = ", ".join(place(*path) for path in keys)
    return f"{named}: unknown key{'s' if len(keys) > 1 else ''}"


def _above(section: tuple) -> str:
    return "".join(f"{part}." for part in section)


def _algorithms_with(keys: Sequence[tuple]) -> list[str]:
    """The algorithms whose section has all of these keys."""
    wanted = {".".join(map(str, path[1:])) for path in keys}
    sections = {name: ALGO_CONFIGS[name]().to_dict() for name in ALGO_CONFIGS.names()}
    return [name for name, section in sections.items() if wanted <= {*_dotted(section)}]


def _names(above: str, paths: Iterable[str]) -> list[str]:
    """The keys right below a path."""
    below = (path.removeprefix(above) for path in paths if path.startswith(above))
    return [name for name in below if "." not in name]


def _hint(key: tuple, paths: Sequence[str], algo_name: str | None) -> str:
    """What was meant: the word that is used here for it, the same name elsewhere, or a name that
    looks alike, in the same section rather than in another."""
    above, name = _above(key[:-1]), str(key[-1])
    words = WORDS.get(name, [])
    for end in (*words, name):
        same = [path for path in paths if f".{path}".endswith(f".{end}")]
        if same:
            return f" Did you mean {' or '.join(same[:3])}?"
    if words:
        return f" {algo_name or 'This file'} has no {words[-1]}."
    anywhere = {path.rpartition(".")[2]: path for path in reversed(paths)}
    siblings = {sibling: above + sibling for sibling in _names(above, paths)}
    for known, cutoff in ((siblings, 0.75), (anywhere, 0.75), (siblings, 0.6)):
        alike = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
        if alike:
            return f" Did you mean {known[alike[0]]}?"
    return ""


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")
