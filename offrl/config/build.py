"""Complete configs made of an algorithm's defaults and overrides, and readable errors."""

import difflib
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeVar

from pydantic import ValidationError, create_model

from offrl.config.algo import AlgoConfig
from offrl.config.content import check_content, place
from offrl.config.schema import Config
from offrl.config.section import Section
from offrl.config.train import DatasetConfig, TrainConfig
from offrl.modules import allow_names, check_allowed, names_in
from offrl.registry import ALGO_CONFIGS, ALGOS, shown
from offrl.robomimic.configs import upgrade_config
from offrl.tree import differences, leaves, merge, without

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Section)


class WrongConfig(ValueError):
    """Raised for wrong keys or values in a config; ``unknown`` lists the paths of unknown keys."""

    unknown: Sequence[tuple] = ()


# Names and examples of composite values, for messages.
LIST, MAP = ("a list", "[a, b]"), ("a map", "{key: value}")
KINDS = {"list_type": LIST, "model_type": MAP, "dict_type": MAP}

# The key under which a config may name its JSON Schema, for editors. It is taken out when read.
SCHEMA_KEY = "$schema"

# Keys that may change in a resumed training, as its length may: they do not affect learning. Where
# data is changes no batch.
MAY_CHANGE = (
    *("experiment.save.", "experiment.rollout.", "experiment.proxies.", "experiment.logging."),
    *("experiment.render_video", "experiment.keep_all_videos", "experiment.video_skip"),
    *("train.hdf5_cache_mode", "train.cache_gb", "train.cache_dir", "train.num_data_workers"),
    "train.online.solved_return",
)
OTHERWISE = "for another training start a new run from its weights (experiment.ckpt_path)"

# Keys of other toolkits, and the ends of the dotted paths of offrl's equivalent keys.
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


def without_pretrained(config: Config) -> Config:
    """Copy a config so that image backbones fetch no weights, as a checkpoint's will be loaded."""
    config = config.model_copy(deep=True)
    encoders = [part.encoder for _, part in config.observation.parts()]
    for encoder in (encoder for by_modality in encoders for encoder in by_modality.values()):
        options = encoder.core_kwargs.get("backbone_kwargs") or {}
        backbone = encoder.core_kwargs.get("backbone_class") or ""
        may_fetch = backbone and "." not in backbone  # none of a user's own
        if may_fetch or options.get("pretrained"):
            encoder.core_kwargs["backbone_kwargs"] = {**options, "pretrained": False}
    return config


def config_from_content(content: Mapping[str, Any], ignore_unknown: bool = False) -> Config:
    """Make a complete config of the content of a config file (``read_config_file``).

    Its key ``algo_name`` names the algorithm. Raises ``ValueError`` as ``config_factory`` does.

    ignore_unknown: leave out unknown keys with a warning, such as those of a fork of robomimic.
    """
    name = content.get("algo_name")
    if not isinstance(name, str):
        raise ValueError(f'algo_name: the name of an algorithm is needed, "bc", not {shown(name)}')
    try:
        return config_factory(name, content)
    except WrongConfig as error:
        if not (ignore_unknown and error.unknown):
            raise
        names = ", ".join(place(*path) for path in error.unknown)
        log.warning("config keys that offrl does not know, and leaves out: %s", names)
        return config_factory(name, reduce(without, error.unknown, content))


def config_factory(algo_name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Make a complete config: the defaults of an algorithm with ``overrides`` laid over them.

    Requirements on the data (``train.dataset_keys``, ``seq_length``, ...) come from the algorithm,
    unless its defaults or ``overrides`` set them. ``ValueError`` names each wrong key or value.

    algo_name: one of offrl's algorithms, or the dotted path of a user's own.
    overrides: nested dicts of keys that differ, ``{"train": {"batch_size": 256}}``.
    """
    content = check_content({"algo_name": algo_name, **(overrides or {})})
    address = content.pop(SCHEMA_KEY, "")
    if not isinstance(address, str):
        needs = "the address of a JSON Schema is needed, a text"
        raise ValueError(f"{SCHEMA_KEY}: {needs}, not {shown(address)}")
    overrides = upgrade_config(content)
    stated = overrides["algo_name"]
    if stated != algo_name:
        raise ValueError(f"algo_name: the config is for {shown(stated)}, not {shown(algo_name)}")
    allow_names(_of_policy(overrides))
    section = ALGO_CONFIGS[algo_name]
    config = complete_config(algo_name, section, overrides)
    if config.train.num_steps is not None:
        config.follow_online(overrides)
    make_class = ALGOS.get(algo_name)
    if make_class is not None:
        algo_class, _ = make_class(config.algo)
        algo_class.complete_observation(config.observation, overrides.get("observation", {}))
        said = merge(section.DEFAULTS.get("train", {}), overrides.get("train", {}))
        needed = dict.fromkeys((*TrainConfig().dataset_keys, *algo_class.NEEDS))
        follows = {
            "hdf5_load_next_obs": "next_obs" in needed,
            "dataset_keys": [key for key in needed if key not in ("obs", "next_obs")],
            **algo_class.window(config.algo),
        }
        for key, value in follows.items():
            if key not in said:
                try:
                    setattr(config.train, key, value)
                except ValidationError as error:  # the algorithm asks for an invalid value
                    raise ValueError(f"train.{_explain(error.errors()[0])}") from None
    return config


def stored_config(algo_name: str, text: str) -> Config:
    """Make the config in a checkpoint, of its JSON ``text``. Raises ``ValueError`` as
    ``config_factory`` does, and for modules that are not allowed (``offrl.modules``)."""
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError(f"its config is {shown(content)}, and no map")
    for name in names_in(_of_policy({**content, "algo_name": algo_name})):
        check_allowed(name, f"the policy ({shown(name)})")
    return config_factory(algo_name, content)


def _of_policy(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: content.get(key) for key in ("algo_name", "algo", "observation")}


def complete_config(
    algo_name: str, algo_section: type[AlgoConfig], overrides: Mapping[str, Any]
) -> Config:
    """Make a config whose section ``algo`` has a given class, registered or not."""
    model = _config_class(algo_section)
    defaults = merge(model(algo_name=algo_name).to_dict(), algo_section.DEFAULTS)
    return validated(model, merge(defaults, overrides), defaults)


def validated(model: type[S], content: Mapping[str, Any], known: Mapping[str, Any]) -> S:
    """Make a section of nested dicts. Raises ``WrongConfig``, which names every wrong key or value
    by its dotted path, with the most similar ``known`` keys."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        unknown = [e["loc"] for e in error.errors() if e["type"] == "extra_forbidden"]
        wrong = (e for e in error.errors() if e["type"] != "extra_forbidden")
        errors = [*unknown_keys(unknown, known), *map(_explain, wrong)]
        more = [f"and {len(errors) - 10} more"] if len(errors) > 10 else []
        problem = WrongConfig("; ".join(errors[:10] + more))
        problem.unknown = unknown
        raise problem from None


@cache
def _config_class(algo_section: type[AlgoConfig]) -> type[Config]:
    sections: dict[str, Any] = {"algo": (algo_section, algo_section())}
    if algo_section.OBSERVATION is not None:
        sections["observation"] = (algo_section.OBSERVATION, algo_section.OBSERVATION())
    return create_model("Config", __base__=Config, **sections)


def _explain(error: Any) -> str:
    path = place(*error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if message.startswith("algo.") and not message.startswith(path):  # in an algorithm's part
        message = re.sub(r"\balgo\.", f"{path}.", message)
    if error["type"] in KINDS:
        kind, such_as = KINDS[error["type"]]
        return f"{path}: {kind} is needed, such as {such_as}, not {shown(error['input'])}"
    if error["type"] in ("value_error", "missing"):
        return f"{path}: {message}" if path else message
    return f"{path}: {message}, got {shown(error['input'])}"


def unknown_keys(keys: Sequence[tuple], known: Mapping[str, Any]) -> Iterator[str]:
    """Write messages on unknown keys with hints, one for all keys with the same hint.

    keys: the path of each key. known: the config with all known keys.
    """
    paths, algo_name = [*_dotted(known)], known.get("algo_name")
    entries = {key[:3] for key in keys if key[:2] == ("train", "data")}
    paths += [place(*entry, name) for entry in entries for name in DatasetConfig.model_fields]
    of_algo = [key for key in keys if key[0] == "algo"]
    others = ""  # algorithms whose sections have all of these keys
    if wanted := {".".join(map(str, key[1:])) for key in of_algo}:
        sections = {name: ALGO_CONFIGS[name]().to_dict() for name in ALGO_CONFIGS.names()}
        others = ", ".join(name for name, own in sections.items() if wanted <= {*_dotted(own)})
    with_hint: dict[str, list[str]] = {}
    for key in keys:
        hint = _hint(key, paths, algo_name)
        if others and key in of_algo:
            hint = f" {algo_name} has no such, but {others}; correct algo_name, or leave them out."
        with_hint.setdefault(hint, []).append(place(*key))
    for hint, names in with_hint.items():
        yield f"{', '.join(names)}: unknown key{'s' if names[1:] else ''}.{hint}"


def _hint(key: tuple, paths: Sequence[str], algo_name: str | None) -> str:
    """Suggest the intended key: offrl's equivalent, the same name in another section, or a similar
    name, first in the same section. Else list the keys of that section."""
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


def check_longer(config: Section, new: Section, overrides: Mapping[str, Any]) -> None:
    """Check that a run with ``config`` can be resumed with ``new``, made by ``overrides``. Raises
    ``ValueError`` for a key that would have changed the steps so far."""
    length = "max_steps"
    if isinstance(config, Config):
        length = "train.num_steps" if config.train.num_steps else "train.num_epochs"
    changed = differences(config.to_dict(), new.to_dict())
    for key, (was, now) in changed.items():
        if not (now and now > was if key == length else key.startswith(MAY_CHANGE)):
            raise ValueError(
                f"--set {key}: {shown(now)}, but the run was trained with {shown(was)}, and what "
                f"it has learned depends on that; it can be made longer ({length}); {OTHERWISE}"
            )
    if not isinstance(config, Config) or "train.num_steps" not in changed:
        return
    # Other keys may follow from the number of steps; a user may set these to keep them.
    was, now = changed["train.num_steps"]
    values, defaults = (leaves(c.to_dict()) for c in (config, config_factory(config.algo_name)))
    followed = {"train.online.random_steps": was // 3, "experiment.epoch_every_n_steps": was}
    for key, value in followed.items():
        if values[key] == value != defaults[key] and key not in leaves(overrides):
            raise ValueError(
                f"--set train.num_steps: {now}, but {key} ({value}) followed from {was} steps; "
                f"if it is to stay, say so (--set {key}={value}); {OTHERWISE}"
            )
    if config.train.online.replay.prioritized:
        raise ValueError(
            f"--set train.num_steps: {now}, but train.online.replay.prioritized corrects by how "
            f"much of the training is over; {OTHERWISE}"
        )


class ResizedTrainConfig(TrainConfig):
    """The section ``train`` of a training that was made longer. Raises ``ValueError`` if an
    algorithm reads the length, as what it learns would depend on that."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in ("num_epochs", "num_steps") and value is not None:
            raise ValueError(
                f"train.{name}: {value} is another length than the run was begun with, and what is "
                f"learned goes by it (a cosine schedule, say); put back what it was; {OTHERWISE}"
            )
        return value


def for_algo(config: Config, earlier: Mapping[str, Any] | None) -> Config:
    """Make the algorithm's config in a training that is resumed from the checkpoint ``earlier``: if
    the length has changed since, the algorithm cannot read it."""
    then = json.loads(earlier["config"])["train"] if earlier else {}
    lengths = {key: config.train[key] for key in ("num_epochs", "num_steps")}
    is_same = all(then.get(key, now) == now for key, now in lengths.items())
    return config if is_same else with_train(config, ResizedTrainConfig)


def with_train(config: Config, section: type[TrainConfig]) -> Config:
    """Copy the config with another class for its section ``train``."""
    return config.model_copy(update={"train": section.model_construct(**dict(config.train))})
