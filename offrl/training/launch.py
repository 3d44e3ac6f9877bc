"""Whole trainings, for the program, notebooks and tests, in this process or on Ray."""

import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from offrl import cluster, parallel
from offrl.checkpoint import policy_from_checkpoint
from offrl.config import Config, config_from_content
from offrl.kernels.allocator import FreedMemory
from offrl.processes import ONE_THREAD
from offrl.reports.plot import NO_CURVE, write_learning_curve
from offrl.training.acting import OnlineTraining
from offrl.training.checkpointer import Checkpointer, TaggedFiles, TaggedNames
from offrl.training.evaluator import Evaluator, Proxies
from offrl.training.interrupts import Interrupts
from offrl.training.logger import Logger
from offrl.training.loop import Loop, Record, Training
from offrl.training.progress import Progress, success_line
from offrl.training.recorded import Trainer
from offrl.training.run import RunFolder

log = logging.getLogger(__name__)

SECONDS_BETWEEN_CURVES = 60.0


@dataclass
class Result:
    """The result of a training: ``test`` has the numbers of its final test; ``run``,
    ``checkpoint``, ``learning_curve`` and ``video`` are the places of its files."""

    run: RunFolder  #: The run folder.
    checkpoint: Path | None  #: The best checkpoint by measurements, else the last one.
    #: The final test of that checkpoint, on initial states that chose no checkpoint:
    #: ``Success_Rate``, its 95 % interval, ``Return``, ``n``. ``None`` without evaluation.
    test: dict[str, float] | None
    learning_curve: Path | None  #: A picture of the loss and the success rate.
    video: Path | None  #: The last video.
    no_video: str  #: The reason why there is no video.
    #: Problems despite which the training came to its end.
    problems: Sequence[str]

    @property
    def is_measured(self) -> bool:
        """Say whether the final test, if requested, ran all its episodes."""
        return self.test is None or not self.test["Crashed"]

    def describe(self) -> dict[str, object]:
        """Return the lines that ``offrl train`` prints at the end, by their labels."""
        lines = {
            "result": "not measured" if self.test is None else success_line(self.test),
            "run folder": self.run.path,
            "checkpoint": self.checkpoint or "none was saved (experiment.save says when)",
            "learning curve": self.learning_curve or NO_CURVE,
            "TensorBoard": f"tensorboard --logdir {self.run.logs}",
            "video": self.video or f"none: {self.no_video}",
        }
        return lines | ({"problems": "; ".join(self.problems)} if self.problems else {})


def train(
    config: Config,
    run: RunFolder | None = None,
    interrupts: Interrupts | None = None,
    config_file: Path | None = None,
) -> Result:
    """Train as ``offrl train`` does, and test the best checkpoint at the end.

    This writes checkpoints, logs and videos into a run folder and shows a progress bar. Raises
    ``ValueError`` or ``FileNotFoundError``, before anything is written, if that is impossible.
    Processes of ``torchrun`` are one training: the first one writes, all get its result.

    config: A config of ``config_factory``; ``train.data`` must name the data.
    run: An earlier run to resume from its newest undamaged checkpoint (``RunFolder.open``).
    interrupts: Lets a program stop or save the training by signals.
    config_file: The file of the config, to be kept beside the checkpoints of ``train.model_dest``.
    """
    with parallel.joined():
        if config.train.num_steps and parallel.num_ranks() > 1:
            raise ValueError("train.num_steps: acting needs one process; start without torchrun")
        if run is None:  # before the data is read
            RunFolder.check_place(config)
            if config.train.model_dest:
                TaggedNames(config.train.model_dest).check_free(config_file)
        here = os.getcwd()
        trainer = OnlineTraining(config, run) if config.train.num_steps else Trainer(config, run)
        os.chdir(here)  # an environment may have changed it
        trainer.interrupts = interrupts or trainer.interrupts
        trainer.config_file = config_file
        if parallel.rank():
            _follow(trainer)
        return parallel.by_first(_lead, trainer)


def _follow(trainer: Training) -> None:
    """Train and evaluate in a process other than the first, without writing."""
    interrupts = trainer.interrupts
    try:
        with closing(Evaluator(trainer)) as evaluator, interrupts.wait():
            for _ in chain(_measured(trainer, evaluator), _tests(trainer, evaluator)):
                pass
    except ConnectionError:
        interrupts.check()  # the first process has stopped, as all shall
        raise


def _lead(trainer: Training) -> Result:
    """Train, evaluate, and write all results."""
    test, drawn = None, time.monotonic()
    checkpointer = Checkpointer(trainer)
    with closing(trainer), closing(Evaluator(trainer)) as evaluator, writing(trainer) as logger:
        run = trainer.run
        records = checkpointer(logger(_measured(trainer, evaluator)))
        if trainer.config.train.model_dest:
            records = TaggedFiles(trainer)(records)
        tests = logger(_tests(trainer, evaluator, checkpointer))
        for record in Progress(trainer)(chain(records, tests)):
            if record["type"] == "test":
                test = record["logs"]
            if record["type"] == "epoch" and time.monotonic() - drawn > SECONDS_BETWEEN_CURVES:
                write_learning_curve(run)
                drawn = time.monotonic()
    curve, best = write_learning_curve(run), checkpointer.best_checkpoint
    result = Result(run, best, test, curve, evaluator.video, evaluator.no_video, trainer.problems)
    run.write_config(trainer.config, is_finished=result.is_measured)
    return result


@contextmanager
def writing(trainer: Loop) -> Iterator[Logger]:
    """Let a training write into its run folder, and yield the logger of its records. A stop waits
    for the end of a step, and a message at any end says how to resume."""
    with (
        trainer.interrupts.wait(),
        closing(Logger(trainer)) as logger,
        cluster.saying_how_to_resume(_how_to_go_on(trainer)),
    ):
        log.info("run folder: %s", trainer.run.path)
        trainer.run.write_config(trainer.config, is_finished=False)
        try:
            yield logger
        except (KeyboardInterrupt, OSError):
            with suppress(OSError):  # errors of the log itself, on a full disk
                log.info(_how_to_go_on(trainer))
            raise


def _how_to_go_on(trainer: Loop) -> str:
    if isinstance(trainer, Training) and not trainer.run.last_checkpoint.exists():
        return "nothing was saved yet (experiment.save says when)"
    program = "offrl" if shutil.which("offrl") else Path(sys.executable).with_name("offrl")
    return f"go on with: {program} train --resume {shlex.quote(str(trainer.run.path))}"


def _measured(trainer: Training, evaluator: Evaluator) -> Iterator[Record]:
    """Train, with evaluations and proxies."""
    training = within_memory(trainer())
    if isinstance(trainer, Trainer):  # the others have no data to measure on
        training = Proxies(trainer)(training)
    return evaluator(training)


def within_memory(records: Iterator[Record]) -> Iterator[Record]:
    """Train with the memory that this process has freed, up to a limit."""
    memory = FreedMemory()
    for record in records:
        if record["type"] in ("progress", "train"):  # at regular steps
            memory.limit()
        yield record


def _tests(
    trainer: Training, evaluator: Evaluator, checkpointer: Checkpointer | None = None
) -> Iterator[Record]:
    """Test the best checkpoint, if any, and, with ``test_last``, the last policy, once each."""
    algo, wants_last = trainer.algo, trainer.config.experiment.rollout.test_last
    best = None if checkpointer is None else checkpointer.best_checkpoint
    is_last = best is not None and best == trainer.run.checkpoint(trainer.epoch)
    (best_is_last,) = parallel.largest(is_last)
    if wants_last and not best_is_last:
        yield from evaluator.test(algo, "test_last")
    if best is not None:
        algo = policy_from_checkpoint(best, device=trainer.device)[0].policy
    for record in evaluator.test(algo):
        yield record
        if wants_last and best_is_last and not record["type"].endswith("episode"):
            yield record | {"type": f"{record['type']}_last"}


def submit(
    configs: Sequence[Config], address: str, num_threads: int | None = None
) -> list[Result | Exception]:
    """Train with each config on Ray, as many at a time as CPUs allow, and wait for all.

    Returns for each the result of ``train(config)``, bit-identical to that here with as many
    threads, or the exception that ended it. Each training is a process of its own, without output.
    It works in this program's folder, which must be on a disk that the machines share. Trainings
    end with the program; ``offrl train --resume`` resumes them.

    address: See ``offrl.cluster.connected``.
    num_threads: The number of threads and CPUs of each training; ``None``: PyTorch's number here. A
        training that may use a GPU takes one, if the cluster has any.
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
        self.future: Future = reference.future()  #: The future of its ``Result``.

    def stop(self) -> None:
        """End it at once."""
        cluster.import_ray().cancel(self._reference, force=True)

    def close(self) -> None:
        """Wait until it has ended."""
        wait([self.future])

    def outcome(self) -> str | None:
        """Return the reason for a failure, an empty text on success, ``None`` while it runs."""
        if not self.future.done():
            return None
        result = self.result()
        if isinstance(result, Exception):
            return str(result)
        return "" if result.is_measured else "not all episodes of its test could be run"

    def result(self) -> Result | Exception:
        """Wait for the training, and return its result or the exception that ended it."""
        error = self.future.exception()
        if error is None:
            return self.future.result()
        cause = getattr(error, "cause", None)  # the exception that was raised there
        if isinstance(cause, Exception):
            return cause
        return ChildProcessError(
            f"a training on Ray was lost ({type(error).__name__}); if memory is short, use fewer "
            "CPUs (ray start --num-cpus), and go on with offrl train --resume"
        )


@contextmanager
def on_ray(address: str, num_threads: int | None = None) -> Iterator[Callable[..., RemoteTraining]]:
    """Connect to Ray (see ``submit``). Yields a function that starts a training there, by the
    content of its config and, to resume it, its run folder."""
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
        # Each process trains once; a lost training is not repeated.
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
