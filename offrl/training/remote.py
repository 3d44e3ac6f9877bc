"""Trainings on Ray."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from offrl import cluster
from offrl.config import Config, config_from_content
from offrl.processes import ONE_THREAD
from offrl.training.launch import Result, train
from offrl.training.run import RunFolder


def submit(
    configs: Sequence[Config], address: str, num_threads: int | None = None
) -> list[Result | Exception]:
    """Train with each config on Ray, as many at a time as there are CPUs for, and wait for all.

    Returns for each what ``train(config)`` gives here with as many threads, to the bit, or the
    exception that ended it. Each training is a process of its own, and shows nothing. It works in
    the folder of this program, which must be on a disk that the machines share. Trainings end with
    the program; ``offrl train --resume`` goes on with them.

    address: See ``offrl.cluster.connected``.
    num_threads: The number of threads of each training, which takes as many CPUs; ``None``: as many
        as PyTorch has here. A training that may use a GPU takes one, where the cluster has any.
    """
    with on_ray(address, num_threads) as start:
        trainings = [start(config.to_dict()) for config in configs]
        try:
            wait([training.future for training in trainings])
        finally:
            for training in trainings:
                training.stop()
        return [training.result() for training in trainings]


class RemoteTraining:
    """A training on Ray."""

    def __init__(self, reference: Any):
        self._reference = reference
        self.future: Future = reference.future()  #: Of its ``Result``.

    def stop(self) -> None:
        """End it at once."""
        cluster.import_ray().cancel(self._reference, force=True)

    def close(self) -> None:
        """Wait until it has ended."""
        wait([self.future])

    def outcome(self) -> str | None:
        """Say why it failed: an empty text if it came to its end, ``None`` as long as it runs."""
        if not self.future.done():
            return None
        result = self.result()
        if isinstance(result, Exception):
            return str(result)
        return "" if result.is_measured else "not all episodes of its test could be run"

    def result(self) -> Result | Exception:
        """Wait for its result, or the exception that ended it."""
        error = self.future.exception()
        if error is None:
            return self.future.result()
        cause = getattr(error, "cause", None)  # what was raised there
        if isinstance(cause, Exception):
            return cause
        return ChildProcessError(
            f"a training on Ray was lost ({type(error).__name__}); if memory is short, use fewer "
            "CPUs (ray start --num-cpus), and go on with offrl train --resume"
        )


@contextmanager
def on_ray(address: str, num_threads: int | None = None) -> Iterator[Callable[..., RemoteTraining]]:
    """Connect to Ray (see ``submit``). Yields a function that starts a training there, by the
    content of its config and, to go on with it, its run folder."""
    num_threads = num_threads or torch.get_num_threads()
    threads = dict.fromkeys(ONE_THREAD, str(num_threads))
    with cluster.connected(address):
        ray = cluster.import_ray()
        largest = max(int(x["Resources"].get("CPU", 0)) for x in ray.nodes() if x["Alive"])
        if num_threads > largest:
            raise ValueError(
                f"num_threads: {num_threads}, but no node of the Ray at {address} has more than "
                f"{largest} CPUs, and a training runs on one; set it to {largest} or less"
            )
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        here = os.getcwd(), cluster.versions()
        # A process that has trained ends; a training that was lost does not begin anew.
        task = ray.remote(max_calls=1, max_retries=0)(_train_elsewhere)
        options = cluster.options(threads, num_cpus=num_threads)

        def start(content: Mapping[str, Any], run: Path | None = None) -> RemoteTraining:
            num_gpus = int(has_gpus and content["train"]["cuda"])
            started = task.options(num_gpus=num_gpus, **options).remote(content, run, *here)
            return RemoteTraining(started)

        yield start


def _train_elsewhere(
    content: Mapping[str, Any], run: Path | None, folder: str, versions: Mapping[str, str]
) -> Result:
    cluster.check_versions(cluster.report(), versions)
    os.chdir(folder)
    if run is None:
        return train(config_from_content(content))
    opened, config = RunFolder.open(run)
    return train(config, opened)
