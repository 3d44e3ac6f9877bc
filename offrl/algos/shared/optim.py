"""Optimizers, their learning-rate schedules and clipped gradients, from ``algo.optim_params``."""

import copy
import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from offrl.config import Config, LearningRateConfig, OptimConfig
from offrl.lazy import Tensor, torch


class Learning:
    """The optimizer of each network, and the schedule of its learning rate, ``None`` where that is
    constant. They are made together: a schedule sets the optimizer's rate when it is made."""

    def __init__(
        self,
        optimizers: "dict[str, torch.optim.Optimizer]",
        configs: Mapping[str, OptimConfig],
        global_config: Config,
    ):
        self.optimizers = optimizers
        self.schedules = {
            name: make_schedule(optimizers[name], config, global_config)
            for name, config in configs.items()
        }
        self._by_step = {n for n, own in configs.items() if own.learning_rate.step_every_batch}

    def on_step(self, name: str) -> None:
        """Move the learning rate of a network, if it counts steps."""
        schedule = self.schedules[name]
        if schedule and name in self._by_step:
            schedule.step()

    def on_epoch_end(self) -> None:
        """Move the learning rates that count epochs."""
        with warnings.catch_warnings():
            # A training that was resumed right here made its steps in another process.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for name, schedule in self.schedules.items():
                if schedule and name not in self._by_step:
                    schedule.step()

    def serialize(self) -> dict[str, Any]:
        """Give the part of a checkpoint that is theirs."""
        return {
            "optimizers": {n: o.state_dict() for n, o in self.optimizers.items()},
            "lr_schedulers": {n: s.state_dict() for n, s in self.schedules.items() if s},
        }

    def deserialize(self, state: Mapping[str, Any]) -> None:
        """Take over a copy of that part of a checkpoint."""
        for name, optimizer in state.get("optimizers", {}).items():
            self.optimizers[name].load_state_dict(copy.deepcopy(optimizer))
        for name, stored in state.get("lr_schedulers", {}).items():
            if schedule := self.schedules[name]:
                schedule.load_state_dict(stored)


def make_optimizer(
    parameters: "Iterable[torch.nn.Parameter]", config: OptimConfig
) -> "torch.optim.Optimizer":
    """All parameters in one kernel per step; ``regularization.L2`` is the weight decay."""
    from offrl.kernels.adam import Adam, AdamW, RMSprop

    classes = {"adam": Adam, "adamw": AdamW, "rmsprop": RMSprop}
    options: dict[str, Any] = {"foreach" if config.optimizer_type == "rmsprop" else "fused": True}
    if config.epsilon is not None:
        options["eps"] = config.epsilon
    return classes[config.optimizer_type](
        parameters,
        lr=config.learning_rate.initial,
        weight_decay=config.regularization.L2,
        **options,
    )


def make_schedule(
    optimizer: "torch.optim.Optimizer", config: OptimConfig, global_config: Config
) -> "torch.optim.lr_scheduler.LambdaLR | None":
    """The schedule of ``optim_params.*.learning_rate``, or ``None`` if the rate is constant.

    It counts epochs, or optimizer steps with ``step_every_batch``.
    """
    factor = _factor(config.learning_rate, global_config)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor) if factor else None


def _factor(rate: LearningRateConfig, config: Config) -> Callable[[int], float] | None:
    """The factor on the initial rate after ``t`` epochs or steps."""
    if rate.scheduler_type == "cosine":
        total, warmup = _horizon(rate, config), rate.warmup_steps

        def cosine(t: int) -> float:
            if t < warmup:
                return t / warmup
            progress = (t - warmup) / max(1, total - warmup)
            return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * rate.num_cycles * progress)))

        return cosine
    if rate.scheduler_type.startswith("constant") and rate.warmup_steps:
        first = int(rate.scheduler_type == "constant")  # forks of robomimic begin with a rate of 0
        return lambda t: min(1.0, (t + first) / rate.warmup_steps)
    if rate.scheduler_type.startswith("constant") or not rate.epoch_schedule:
        return None
    if rate.scheduler_type == "linear":
        if len(rate.epoch_schedule) != 1:
            raise ValueError(
                "learning_rate.epoch_schedule: the linear schedule takes one number, when it "
                f"ends; got {rate.epoch_schedule}"
            )
        end = rate.epoch_schedule[0]
        return lambda t: 1 + (rate.decay_factor - 1) * min(1.0, t / end)
    milestones = sorted(rate.epoch_schedule)
    return lambda t: rate.decay_factor ** bisect_right(milestones, t)


def _horizon(rate: LearningRateConfig, config: Config) -> int:
    """Length of the training in the unit that the schedule counts."""
    if not rate.step_every_batch:
        return config.train.num_epochs
    if config.train.num_steps is not None:
        raise ValueError(
            "learning_rate.step_every_batch: how many updates a training by acting makes is not "
            "known beforehand; set it to false, and the schedule goes by epochs"
        )
    if config.experiment.epoch_every_n_steps is None:
        raise ValueError(
            "experiment.epoch_every_n_steps: a schedule per step needs the steps per epoch; "
            "the Trainer fills them in, without one set the key"
        )
    return config.train.num_epochs * config.experiment.epoch_every_n_steps


def clip_gradients(
    net: "torch.nn.Module", parameters: "Sequence[torch.nn.Parameter]", limit: float | None
) -> Tensor:
    """The norm of the gradient, at most ``limit`` afterwards; an ensemble has one per member."""
    from offrl.kernels.norm import clip_norm, total_norm

    own = getattr(net, "clip_gradients", None)
    if callable(own):
        return own(limit)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if limit is None:
        return total_norm(gradients)
    return clip_norm(gradients, limit).clamp(max=limit)
