"""Complete configs from an algorithm's defaults and what a user says, and errors for people."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeVar

from pydantic import ValidationError, create_model

from offrl.config.algo import AlgoConfig
from offrl.config.content import check_content, place, shown
from offrl.config.hints import unknown_keys
from offrl.config.schema import Config
from offrl.config.section import Section
from offrl.config.train import TrainConfig
from offrl.modules import allow_names, check_allowed, names_in
from offrl.registry import ALGO_CONFIGS, ALGOS
from offrl.robomimic.configs import upgrade_config
from offrl.tree import merge, without

log = logging.getLogger(__name__)
S = TypeVar("S", bound=Section)


class WrongConfig(ValueError):
    """Wrong keys or values of a config; ``unknown`` has the paths of keys that there are not."""

    unknown: Sequence[tuple] = ()


# What values that are made of others are called, and how they are written.
LIST, MAP = ("a list", "[a, b]"), ("a map", "{key: value}")
KINDS = {"list_type": LIST, "model_type": MAP, "dict_type": MAP}

# The key under which a config may name its JSON Schema, for editors. It is taken out when read.
SCHEMA_KEY = "$schema"


def without_pretrained(config: Config) -> Config:
    """Copy a config whose image backbones are to fetch no weights, as others are to be loaded."""
    config = config.model_copy(deep=True)
    encoders = [part.encoder for _, part in config.observation.parts()]
    for encoder in (encoder for by_modality in encoders for encoder in by_modality.values()):
        options = encoder.core_kwargs.get("backbone_kwargs") or {}
        backbone = encoder.core_kwargs.get("backbone_class") or ""
        may_fetch = backbone and "." not in backbone  # not one of a user's own
        if may_fetch or options.get("pretrained"):
            encoder.core_kwargs["backbone_kwargs"] = {**options, "pretrained": False}
    return config


def config_from_content(content: Mapping[str, Any], ignore_unknown: bool = False) -> Config:
    """Make the complete config of what a config file holds (``read_config_file``).

    Its key ``algo_name`` says of which algorithm it is. Raises ``ValueError`` as ``config_factory``
    does.

    ignore_unknown: leave out keys that there are not, of a fork of robomimic, say, with a warning.
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

    What data it needs (``train.dataset_keys``, ``seq_length``, ...) is asked of the algorithm,
    where neither its defaults nor ``overrides`` say so. Raises ``ValueError`` that names every
    wrong key or value by its dotted path.

    algo_name: one of offrl's algorithms, or the dotted path of a user's own.
    overrides: nested dicts with what differs, ``{"train": {"batch_size": 256}}``.
    """
    content = check_content({"algo_name": algo_name, **(overrides or {})})
    address = content.pop(SCHEMA_KEY, "")
    if not isinstance(address, str):
        needs = "the address of a JSON Schema is needed, a text"
        raise ValueError(f"{SCHEMA_KEY}: {needs}, not {shown(address)}")
    overrides = upgrade_config(content)
    stated = overrides["algo_name"]
    if stated != algo_name:
        raise ValueError(
            f"algo_name: the config is for {shown(stated)}, but {shown(algo_name)} was asked for"
        )
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
                except ValidationError as error:  # of an algorithm that wants what cannot be
                    raise ValueError(f"train.{_explain(error.errors()[0])}") from None
    return config


def stored_config(algo_name: str, text: str) -> Config:
    """Make the config that a checkpoint holds, in JSON. Raises ``ValueError`` as ``config_factory``
    does, and where its policy is made by modules that are not allowed (``offrl.modules``)."""
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
    """Make the config whose section ``algo`` is of a given class, registered or not."""
    model = _config_class(algo_section)
    defaults = merge(model(algo_name=algo_name).to_dict(), algo_section.DEFAULTS)
    return validated(model, merge(defaults, overrides), defaults)


def validated(model: type[S], content: Mapping[str, Any], known: Mapping[str, Any]) -> S:
    """Make a section of nested dicts; ``WrongConfig`` names every wrong key or value by its dotted
    path, and what is most like it among the ``known`` keys."""
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
    if message.startswith("algo.") and not message.startswith(path):  # of an algorithm's part
        message = re.sub(r"\balgo\.", f"{path}.", message)
    if error["type"] in KINDS:
        kind, such_as = KINDS[error["type"]]
        return f"{path}: {kind} is needed, such as {such_as}, not {shown(error['input'])}"
    if error["type"] in ("value_error", "missing"):
        return f"{path}: {message}" if path else message
    return f"{path}: {message}, got {shown(error['input'])}"
