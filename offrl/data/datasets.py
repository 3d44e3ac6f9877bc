"""The data that a config describes: demonstrations, and the sentences of ``train.data.lang``."""

import logging
from collections.abc import Mapping, Sequence
from multiprocessing import current_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offrl import parallel
from offrl.config import Config
from offrl.config.train import DatasetConfig
from offrl.data.formats.files import open_demos
from offrl.data.formats.hdf5 import held_out_key
from offrl.data.loader import BatchLoader
from offrl.data.sequence import SequenceDataset
from offrl.images import advice, described, fitting, likely, step_after
from offrl.language import embed
from offrl.registry import MODALITIES
from offrl.seeding import preserved_rng
from offrl.specs import LANGUAGE, is_image, modalities

log = logging.getLogger(__name__)

Embeddings = Mapping[str, np.ndarray]  # by sentences
Langs = Sequence[str | None]
SAME_KEYS = (  # keys of train that are arguments of SequenceDataset
    "action_keys dataset_keys action_config frame_stack seq_length pad_frame_stack pad_seq_length "
    "goal_mode goal_discount goal_rewards hdf5_cache_mode hdf5_use_swmr hdf5_normalize_obs "
    "cache_gb cache_dir"
).split()
MOST_READERS = 4  # where the config says no number


class TrainingData(NamedTuple):
    """The batches of a training from recorded data, and the instructions in them."""

    loader: BatchLoader
    valid_loader: BatchLoader | None  #: The held-out demonstrations, if they are used.
    instructions: dict[str, np.ndarray]  #: The embeddings ``[E]`` by their sentences or names.
    langs: Langs  #: The key in ``instructions`` for each entry of ``train.data``.


def open_data(config: Config, known: Mapping[str, Tensor], device: torch.device) -> TrainingData:
    """Open the data that a config describes, on the device if it fits there. Batches of other data
    are sent there.

    known: The instructions in the checkpoint of a resumed run, which then need no language model.
    """
    train = config.train
    are_seen = LANGUAGE in obs_keys(config)
    sentences = [_sentences(entry, are_seen) for entry in train.data or []]
    instructions = _embedded(sentences, are_seen, known)
    langs: Langs = [own[0] if len(own) == 1 else None for own in sentences]
    dataset = make_dataset(config, instructions)
    if are_seen and not instructions:
        instructions, langs = _stored(dataset, langs)
    options, weights = (train.seed, num_readers(train)), [e.weight for e in train.data or []]
    if train.normalize_weights_by_ds_size:
        weights = [w / s.num_windows for w, s in zip(weights, dataset.sources, strict=True)]
    own = weights if len(set(weights)) > 1 else None  # weights of files' windows, if unequal
    num, size = parallel.num_ranks(), train.samples_per_step
    if train.accumulate > 1 and size > len(dataset):
        raise ValueError(
            f"train.accumulate: {train.accumulate} batches of {train.batch_size} are more than the "
            f"{len(dataset)} windows of {dataset}; lower it"
        )
    if train.accumulate > 1 and train.batch_size % num:
        raise ValueError(
            f"train.batch_size: {train.batch_size} windows, several times over "
            f"(train.accumulate), are no equal parts for {num} processes; set it to a multiple of "
            f"{num}"
        )
    loader = BatchLoader(place(dataset, device), size, *options, own).to(device)
    if not config.experiment.validate:
        return TrainingData(loader, None, instructions, langs)
    held_out = make_held_out_dataset(config, instructions, dataset)
    parts = num * train.accumulate
    size = min(size, max(parts, len(held_out) // parts * parts))
    valid_loader = BatchLoader(place(held_out, device), size, *options).to(device)
    return TrainingData(loader, valid_loader, instructions, langs)


def num_readers(train: Any) -> int:
    """Return the number of processes that read data ahead: ``train.num_data_workers``."""
    if current_process().daemon:  # which may have no children
        return 0
    if train.num_data_workers is not None:
        return int(train.num_data_workers)
    return max(0, min(MOST_READERS, parallel.num_cores() - 1))


def obs_keys(config: Config) -> set[str]:
    """Return the observation keys of all groups."""
    return {key for group in modalities(config.observation).values() for key in group}


def make_dataset(config: Config, instructions: Embeddings, **changes: Any) -> SequenceDataset:
    """Open the training data, with ``changes`` of the arguments of ``SequenceDataset``."""
    train = config.train
    entries = train.data or []
    constants = [
        {LANGUAGE: instructions[e.lang]} if e.lang and e.lang in instructions else {}
        for e in entries
    ]
    options: dict[str, Any] = {key: train[key] for key in SAME_KEYS} | {
        "hdf5_path": [entry.path for entry in entries],
        "obs_keys": sorted(obs_keys(config)),
        "discount": getattr(config.algo, "discount", 1.0),
        "subgoal_steps": getattr(config.algo, "subgoal_steps", None),
        "obs_steps": getattr(config.algo, "obs_steps", None),
        "rewards": train.rewards.to_dict(),
        "goal_shares": train.goal_shares.to_dict(),
        "get_pad_mask": train.seq_length > 1 or train.frame_stack > 1,
        "filter_by_attribute": [e.filter_key or train.hdf5_filter_key for e in entries],
        "load_next_obs": train.hdf5_load_next_obs,
        "demo_limit": [entry.demo_limit for entry in entries],
        "num_readers": num_readers(train),
        "top_share": [entry.top_share for entry in entries],
        "constants": constants,
        "images": [entry.images for entry in entries],
        "instructions": instructions,
    }
    dataset = SequenceDataset(**(options | changes))
    for group in modalities(config.observation).values():
        for key, modality in group.items():
            _check_form(dataset, key, modality)
    return dataset


def _check_form(dataset: SequenceDataset, key: str, modality: str) -> None:
    """Raise ``ValueError`` for images that the modality refuses, but would take if they were turned
    from the form that they have."""
    if not is_image(modality):
        return
    kind, first = MODALITIES[modality](), torch.zeros(1, 1, dtype=torch.long)
    image = dataset.store.columns[f"obs/{key}"].take(first)[0]
    try:
        kind.shape(image.shape[1:])
        kind.process(image)
    except ValueError:
        path, demo = dataset.sources[0].path, dataset.sources[0].demos[0]
        # The image itself may be turned, and is of float32 whatever numbers are stored.
        with open_demos(path) as file:
            array = file.stored(demo, [f"obs/{key}"])[f"obs/{key}"]
            middle = len(array) // 2  # the first image may be black
            rows = array[middle : middle + 1]
        step, dtype = rows.shape[1:], rows.dtype
        forms = fitting(step, dtype, rows.min(), rows.max())
        if forms and step_after(step, dtype, forms)[0][-1] in kind.CHANNELS:
            forms += likely(*step_after(step, dtype, forms), rows.max())
            raise ValueError(
                f"{path}: observation {key!r} ({modality}) is {list(step)} of {dtype}: "
                f"{described(forms)}; {advice(key, forms)}"
            ) from None


def make_held_out_dataset(
    config: Config, instructions: Embeddings, training: SequenceDataset
) -> SequenceDataset:
    """Open all held-out demonstrations, normalised as those of the ``training``."""
    key = config.train.hdf5_validation_filter_key
    if key is None:
        raise ValueError(
            "train.hdf5_validation_filter_key: experiment.validate needs the filter key of "
            'the held-out demonstrations, e.g. "valid"; or set experiment.validate=false'
        )
    held_out = make_dataset(
        config,
        instructions,
        filter_by_attribute=key,
        demo_limit=None,
        top_share=None,
        action_stats=training.get_action_normalization_stats(),
        reward_stats=training.reward_stats,
        **_room_left(config.train, training),
    )
    chosen = [entry.filter_key or config.train.hdf5_filter_key for entry in config.train.data or []]
    for own, other, trained in zip(chosen, held_out.sources, training.sources, strict=True):
        shared = [demo for demo in other.demos if demo in set(trained.demos)]
        if shared and held_out_key(own or "") != key:  # opening the file warns of such a pair
            log.warning(
                f"{other.path}: {len(shared)} held-out demonstrations ({shared[0]}, ...) are "
                "trained on as well, so that the validation says too much good; set "
                "train.hdf5_filter_key to those that are not held out"
            )
    return held_out


def _room_left(train: Any, training: SequenceDataset) -> dict[str, Any]:
    """Let held-out data take the memory that the training's data leaves of ``train.cache_gb``."""
    if train.hdf5_cache_mode != "auto":
        return {}
    if training.is_streamed:
        return {"hdf5_cache_mode": "low_dim"}
    return {"cache_gb": train.cache_gb and train.cache_gb - training.nbytes / 1e9}


def place(dataset: SequenceDataset, device: torch.device) -> SequenceDataset:
    """Move the dataset to a device, if it fits there."""
    if not dataset.is_streamed and device.type != "cpu":
        free, _ = torch.cuda.mem_get_info(device)
        if dataset.nbytes < free // 2:
            dataset.to(device)
    return dataset


def _sentences(entry: DatasetConfig, are_seen: bool) -> list[str]:
    """Return the instructions of an entry of ``train.data``: the one that it gives, or else those
    that the data tells in words, unless it stores their embeddings."""
    if entry.lang or not are_seen:
        return [entry.lang] if entry.lang else []
    with open_demos(entry.path) as file:
        stores = file.has(file.demos(limit=1)[0], f"obs/{LANGUAGE}")
        return [] if stores else sorted({*file.tasks.values()})


def _embedded(
    told: Sequence[Sequence[str]], are_seen: bool, known: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    """Embed the sentences of each entry of the data, unless the policy does not see them."""
    sentences = [sentence for own in told for sentence in own]
    if sentences and not are_seen:
        remedy = f"add {LANGUAGE} to observation.modalities.obs.low_dim"
        log.warning(f"train.data.lang: the policy does not see it; {remedy}")
    if not sentences or not are_seen:
        return {}
    if not all(told):
        raise ValueError("train.data.lang: give an instruction for every dataset, or for none")
    if set(sentences) <= set(known):
        return {lang: known[lang].numpy() for lang in sentences}
    with preserved_rng():
        return embed(sentences)


def _stored(dataset: SequenceDataset, langs: Langs) -> tuple[dict[str, np.ndarray], Langs]:
    """Collect the stored embeddings that are the same at all steps of a file, which evaluations use
    as well, under new names. Returns them, and ``langs`` with those names."""
    instructions, names = dict[str, np.ndarray](), list(langs)
    for k, value in enumerate(dataset.constant_obs(LANGUAGE)):
        if value is not None:
            names[k] = name = f"{LANGUAGE} of {Path(dataset.sources[k].path).name}"
            instructions[name] = value
    return instructions, names
