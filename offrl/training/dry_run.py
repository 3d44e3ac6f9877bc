"""The dry run of a training: all up to its first step, and a report of it."""

import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from offrl.config import Config
from offrl.data.windows import WindowDataset
from offrl.memory import free_memory, in_bytes
from offrl.outputs import check_place
from offrl.training.acting import OnlineTraining
from offrl.training.recorded import Trainer
from offrl.training.run import RunFolder


def dry_run(config: Config) -> Mapping[str, str]:
    """Make all that a training is made of, and its first batch, but no step and no run folder.

    Returns lines on what was found, by their labels. Raises ``ValueError`` or
    ``FileNotFoundError`` if the config cannot be trained.
    """
    started, lines = time.perf_counter(), dict[str, str]()
    RunFolder.check_place(config)
    if folder := config.train.cache_dir:  # it is not filled
        check_place(Path(folder).expanduser())
        config.train.cache_dir = None
        config.train.hdf5_cache_mode = config.train.hdf5_cache_mode and "low_dim"
    with closing(OnlineTraining(config) if config.train.num_steps else Trainer(config)) as training:
        if isinstance(training, Trainer):
            training.algo.process_batch_for_training(next(iter(training.loader)))
            lines = _of_data(training, time.perf_counter() - started)
        if folder:
            lines["cache folder"] = f"images are decoded into {folder} when the training begins"
        nets = training.algo.nets
        numbers = sum(weights.numel() for weights in nets.parameters())
        return lines | {
            "algorithm": f"{config.algo_name}, {numbers:,} weights in {', '.join(nets)}",
            "device": str(training.device),
            "environments": ", ".join(training.environments) or "none to evaluate in",
        }


def _of_data(training: Trainer, seconds: float) -> dict[str, str]:
    dataset, loader = training.dataset, training.loader
    lines = {
        f"data {k}": f"{source.path}: {len(source.demos)} demonstrations, {source.num_steps} steps"
        for k, source in enumerate(dataset.sources)
    }
    return lines | {
        "samples": f"{len(dataset)}, in {loader.batches_per_pass} batches of {loader.batch_size}",
        **{name: ", ".join(keys) for name, keys in _places(dataset).items()},
        "free memory": in_bytes(free_memory()),
        "first batch": f"after {seconds:.1f} s",
    }


def _places(dataset: WindowDataset) -> dict[str, list[str]]:
    """Say of each key where its rows are, and their bytes in memory."""
    places: dict[str, list[str]] = {"in memory": [], "from files": []}
    for key, column in sorted(dataset.store.columns.items()):
        words = f"{key} {in_bytes(column.nbytes)}"
        if column.is_streamed:
            places["from files"].append(f"{words} of it kept in memory" if column.nbytes else key)
        else:
            places["in memory"].append(words)
    return {name: keys for name, keys in places.items() if keys}
