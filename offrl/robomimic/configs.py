"""robomimic's config files, of its versions 0.2 to 0.5, with the keys of today."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)

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
