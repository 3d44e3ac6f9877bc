"""The datasets that a config describes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from offrl.config import Config
from offrl.data.sequence import SequenceDataset
from offrl.specs import LANGUAGE, modalities

SAME_KEYS = (  # of train and among the arguments of SequenceDataset
    "action_keys dataset_keys action_config frame_stack seq_length pad_frame_stack pad_seq_length "
    "goal_mode hdf5_cache_mode hdf5_use_swmr hdf5_normalize_obs"
).split()


def obs_keys(config: Config) -> set[str]:
    """The observations of all groups."""
    return {key for group in modalities(config.observation).values() for key in group}


def make_dataset(
    config: Config,
    instructions: Mapping[str, np.ndarray],
    filter_keys: Sequence[str | None] | None = None,
    **changes: Any,
) -> SequenceDataset:
    """``train.data``, by default of the demonstrations to train on; ``changes`` are arguments of
    ``SequenceDataset``."""
    train = config.train
    entries = train.data or []
    options = {key: train[key] for key in SAME_KEYS} | {
        "hdf5_path": [entry.path for entry in entries],
        "obs_keys": sorted(obs_keys(config)),
        "discount": getattr(config.algo, "discount", 1.0),
        "rewards": train.rewards.to_dict(),
        "get_pad_mask": train.seq_length > 1 or train.frame_stack > 1,
        "filter_by_attribute": filter_keys
        or [entry.filter_key or train.hdf5_filter_key for entry in entries],
        "load_next_obs": train.hdf5_load_next_obs,
        "demo_limit": [entry.demo_limit for entry in entries],
        "top_share": [entry.top_share for entry in entries],
        "constants": [
            {LANGUAGE: instructions[e.lang]} if e.lang in instructions else {} for e in entries
        ],
    }
    return SequenceDataset(**(options | changes))


def make_held_out_dataset(
    config: Config,
    instructions: Mapping[str, np.ndarray],
    training: SequenceDataset,
) -> SequenceDataset:
    """All held-out demonstrations, normalised as those of the ``training``."""
    key = config.train.hdf5_validation_filter_key
    if key is None:
        raise ValueError(
            "train.hdf5_validation_filter_key: experiment.validate needs the filter key of "
            'the held-out demonstrations, e.g. "valid"; or set experiment.validate=false'
        )
    return make_dataset(
        config,
        instructions,
        [key] * len(training.sources),
        demo_limit=None,
        top_share=None,
        action_stats=training.get_action_normalization_stats(),
        reward_stats=training.reward_stats,
    )


def place(dataset: SequenceDataset, device: torch.device) -> SequenceDataset:
    """The dataset on a device, if it fits there."""
    if dataset.is_streamed or device.type == "cpu":
        return dataset
    free, _ = torch.cuda.mem_get_info(device)
    return dataset.to(device) if dataset.nbytes < free // 2 else dataset
