"""Measures the time that each part of a training step takes."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial, wraps
from math import ceil
from threading import get_ident
from time import perf_counter, process_time
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from tqdm import tqdm

from offrl.algos import Algo
from offrl.algos.shared.engine import CAPTURING, MOST_GRAPHS, Engine
from offrl.data.ring import Ring
from offrl.kernels.operators import Operators
from offrl.processes import changed_environ
from offrl.training.averages import Averages
from offrl.training.interrupts import Interrupts
from offrl.training.launch import within_memory
from offrl.training.loop import Training

OTHER = "other Python"
UPDATE = "whole update"  # one that is captured or compiled
PARTS = (
    *("acting", "environment", "storing"),  # of a training that acts
    *("data", "copying", "preparing", "forward", "backward", "optimizer"),
    *(UPDATE, "logging", OTHER, "waiting"),
)
WITHIN = {"copying": ("preparing", "data")}  # parts that only count inside of others
MOST_FIRST = 10  # steps that are made before others are measured, after the last capture
BLOCKS = 20  # of steps, in turn split into parts and not
FEWEST_ROUNDS = 4
END = object()

Times = tuple[dict[str, float], dict[str, float]]  # seconds of parts, and those of the processor


class Part(NamedTuple):
    """The milliseconds of a part of a step, or of a whole one."""

    mean: float
    median: float
    processor: float  #: Mean processor time, of all threads together.


@dataclass(frozen=True)
class Profile:
    """The times of a training's steps and of their parts."""

    num_steps: int  #: The number of steps whose parts were measured.
    parts: dict[str, Part]  #: By name. Their means add up to that of the step.
    step: Part  #: The step while its parts are measured.
    plain: Part  #: The step while they are not.
    cost: np.ndarray  #: Quartiles ``[3]`` of the share that measuring the parts adds to a step.
    #: Of each operator its name, its calls in a step and their milliseconds; the slowest first.
    operators: list[tuple[str, float, float]]
    num_operators: int  #: Operators in a step that reach a backend.
    num_kernels: float  #: Kernels in a step that run on a GPU.
    gpu_share: float  #: The share of the time in which the GPU computes.

    def share(self, *names: str) -> float:
        """Return the share of the step that these parts take."""
        return sum(self.parts[x].mean for x in names if x in self.parts) / self.step.mean


class Clock:
    """Charges the time of a step to the innermost part that runs, so that the parts add up. Threads
    of an update (``train.accumulate``) work by turns, and have parts of their own."""

    _splits = False

    def begin(self, splits: bool) -> None:
        """Begin a step. Unless it ``splits`` into parts, all its time is that of ``OTHER``."""
        self._splits = splits
        self._running = defaultdict(lambda: ["forward"], {get_ident(): [OTHER]})  # by thread
        self._times: Times = defaultdict(float), defaultdict(float)
        self._since = perf_counter(), process_time()

    def end(self) -> Times:
        """End the step."""
        self._charge()
        self._splits = False
        return self._times

    def _charge(self) -> None:
        now = perf_counter(), process_time()
        part = self._running[get_ident()][-1]
        for times, before, after in zip(self._times, self._since, now, strict=True):
            times[part] += after - before
        self._since = now

    def timed(self, part: str, function: Callable) -> Callable:
        """Return a function whose time counts for a part."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._splits:
                return function(*args, **kwargs)
            running = self._running[get_ident()]
            if running[-1] not in WITHIN.get(part, running):
                return function(*args, **kwargs)
            self._charge()
            running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self._charge()
                running.pop()

        return call

    def each(self, part: str, items: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator of which the waiting time for each item counts for a part."""
        return iter(self.timed(part, partial(next, items, END)), END)


class CountedOperators(Operators):
    """Counts the operators that reach a backend, without those that only make a view."""

    number = 0

    def see(self, func: Any, arguments: list[Any]) -> None:
        self.number += not func.is_view


class Measured(Exception):
    """Ends a training that has been measured."""


class Profiling(Interrupts):
    """Measures the steps of a training, or the rounds of one that acts.

    A training asks its interrupts between two steps whether to stop. It asks this instead, which
    then starts and stops clocks and profilers, and ends the training after the last step.

    num_steps: The least number of steps to measure; of a training that acts, in its environments.
    """

    training: Any

    def __init__(self, training: Training, num_steps: int):
        super().__init__()
        self.training = training
        self.acts = bool(training.config.train.num_steps)
        self.uses_gpu = training.device.type != "cpu"
        self._clock = Clock()
        self._split, self._unsplit = list[list[Times]](), list[list[Times]]()  # blocks of steps
        together = 1  # steps of which one does work for all
        if self.acts:
            online = training.config.train.online
            in_round = online.num_envs * online.collect_steps
            num_steps = max(FEWEST_ROUNDS, ceil(num_steps / in_round))
        else:
            together = self.training.loader.num_together
            batches = iter(self.training.loader)
            self.training.loader = self._clock.each("data", batches)
        self._num_first, self._num_recorded = min(MOST_FIRST, num_steps), ceil(num_steps / 100)
        self._block = ceil(num_steps / BLOCKS)
        self._stretch = together * ceil(2 * self._block / together)
        self._num_stretches = ceil(num_steps / self._stretch)
        training.interrupts = self

    def __call__(self) -> Profile:
        """Train and measure. Raises ``ValueError`` if the training ends too early."""
        total = 2 * self._num_stretches * self._stretch + self._num_first + self._num_recorded + 1
        unit = "round" if self.acts else "step"
        with (
            tqdm(total=total, unit=unit, leave=False, disable=None) as self._bar,
            closing(self._phases()) as self._running,
            suppress(Measured),
        ):
            next(self._running)
            for _ in within_memory(self.training()):
                pass
            raise ValueError(
                f"train.num_steps: the training ended before {total} {unit}s were made, as it "
                "takes to measure it; let it be longer, or give a lower --steps"
            )
        return self._profile()

    def check(self, number: int | None = None) -> None:
        super().check(number)
        self._bar.update()
        if next(self._running, END) is END:
            raise Measured

    def _phases(self) -> Generator[None]:
        """Measure steps; the training makes one at each ``yield``."""
        while self.acts and self.training.trainer.is_early:
            self._bar.total += 1
            yield
        yield from self._first()
        for splits in (True, False) * self._num_stretches:
            # Blocks that are split in a stretch are not in the next, so that all its steps count.
            for begun in range(0, self._stretch, self._block):
                num = min(self._block, self._stretch - begun)
                yield from self._timed(num, splits ^ bool(begun // self._block % 2))
        # The first starts in a millisecond, but the other imports PyTorch's compiler.
        autograd = torch.autograd.profiler.profile
        profiler = torch.profiler.profile if self.uses_gpu else autograd
        with changed_environ({"KINETO_LOG_LEVEL": "99"}), profiler() as self._profiler:
            yield from [None] * self._num_recorded
        with CountedOperators() as self._operators:
            yield

    def _first(self) -> Iterator[None]:
        """Make the first steps, and as many again after one that captures or compiles an update.
        Later steps may do that, too, in trainings that capture more than can be kept."""
        left, num_captures = self._num_first, 0
        noted = mock.patch.object(Engine, "capture", autospec=True, side_effect=Engine.capture)
        with noted as capture:
            while left:
                yield
                left -= 1
                if capture.called and num_captures < MOST_GRAPHS:
                    num_captures += 1
                    self._bar.total += self._num_first - left
                    left = self._num_first
                capture.reset_mock()

    def _timed(self, num: int, splits: bool) -> Iterator[None]:
        """Time a block of steps."""
        times: list[Times] = []
        (self._split if splits else self._unsplit).append(times)
        self._wait()
        with ExitStack() as until_timed:
            for replaced in self._replaced() if splits else ():
                until_timed.enter_context(replaced)
            for i in range(num):
                self._clock.begin(splits)
                yield
                # Trainings do not wait, and so steps that are not split do not, but the last.
                if self.uses_gpu and (splits or i == num - 1):
                    self._clock.timed("waiting", self._wait)()
                times.append(self._clock.end())

    def _wait(self) -> None:
        if self.uses_gpu:
            torch.cuda.synchronize(self.training.device)

    def _replaced(self) -> Iterator[Any]:
        """Yield contexts in which the functions that are parts of a step are timed."""
        for owner, name, part in self._functions():
            own = getattr(owner, name)
            timed = self._clock.timed(part, own)
            if name in ("batches", "minibatches"):  # these return iterators
                timed = lambda *args, own=own: self._clock.each("data", own(*args))  # noqa: E731
            yield mock.patch.object(owner, name, timed)

    def _functions(self) -> Iterator[tuple[Any, str, str]]:
        """Yield owners of functions, the names of these, and the parts that they are."""
        algo, train = self.training.algo, self.training.config.train
        yield algo, "process_batch_for_training", "preparing"
        yield torch.Tensor, "to", "copying"
        yield Ring, "send", "copying"
        yield algo, "train_on_batch", "forward"
        if train.engine in CAPTURING:  # what is no function of the algorithm any more
            yield Engine, "step", UPDATE
        yield torch.Tensor, "backward", "backward"
        yield torch.autograd, "grad", "backward"
        yield Algo, "optimize", "optimizer"
        yield algo, "log_info", "logging"
        for name in ("add", "add_step", "share", "fold", "mean"):
            yield Averages, name, "logging"
        if self.acts:
            trainer = self.training.trainer
            yield trainer.agent, "update", "logging"  # reads numbers from tensors
            yield trainer, "choose_actions", "acting"
            yield trainer.envs, "step", "environment"
            yield trainer, "take_in", "storing"
            yield trainer, "take_rollout", "data"
            for owner, name in ((trainer.buffer, "batches"), (algo, "minibatches")):
                if hasattr(owner, name):
                    yield owner, name, "data"

    def _profile(self) -> Profile:
        parts = _ms(self._split)
        whole, unsplit = sum(parts.values()), sum(_ms(self._unsplit).values())
        # On a GPU a step ends later than the calls that ask for it: only means are right.
        typical = np.mean if self.uses_gpu else np.median
        ratios = [
            typical([sum(wall.values()) for wall, _ in split])
            / typical([sum(wall.values()) for wall, _ in unsplit])
            for split, unsplit in zip(self._split, self._unsplit, strict=True)
        ]
        recorded = [x for x in self._profiler.key_averages() if not x.is_user_annotation]
        calls = [x for x in recorded if x.device_type == torch.autograd.DeviceType.CPU]
        kernels = [x for x in recorded if x not in calls and not x.key.startswith("Mem")]
        own = "self_device_time_total" if self.uses_gpu else "self_cpu_time_total"
        num, scale = self._num_recorded, 1e-3 / self._num_recorded  # of microseconds
        operators = [(x.key, x.count / num, scale * getattr(x, own)) for x in calls]
        gpu_ms = scale * sum(getattr(x, own) for x in kernels)
        return Profile(
            whole.shape[1],
            {name: _part(times) for name, times in parts.items()},
            _part(whole),
            _part(unsplit),
            np.percentile(ratios, (25, 50, 75)) - 1,
            sorted(operators, key=lambda x: -x[2]),
            self._operators.number,
            sum(x.count for x in kernels) / num,
            min(1.0, gpu_ms / float(unsplit[0].mean())),
        )


def _ms(blocks: list[list[Times]]) -> dict[str, Any]:
    """Turn the times of steps into milliseconds ``[2, num_steps]`` of each part."""
    steps = [step for block in blocks for step in block]
    return {
        name: 1e3 * np.array([[times.get(name, 0) for times in step] for step in steps]).T
        for name in PARTS
        if any(name in wall for wall, _ in steps)
    }


def _part(times: np.ndarray) -> Part:
    wall, processor = times
    return Part(float(wall.mean()), float(np.median(wall)), float(processor.mean()))
