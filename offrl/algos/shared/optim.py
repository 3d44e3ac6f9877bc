"""Optimizers, their learning-rate schedules and clipped gradients, from ``algo.optim_params``."""

import copy
import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from offrl import parallel
from offrl.algos.shared.updates import OneBatch
from offrl.config import Config, LearningRateConfig, OptimConfig
from offrl.lazy import Tensor, torch


class Optimizers:
    """The optimizers of networks, and the schedules of those learning rates that change.

    parameters: what the optimizer of each network moves.
    """

    def __init__(
        self,
        parameters: "Mapping[str, Iterable[torch.nn.Parameter]]",
        configs: Mapping[str, OptimConfig],
        global_config: Config,
    ):
        from offrl.kernels.optim import parts_of

        self.parameters = {name: [*parameters[name]] for name in configs}
        self.optimizers: dict[str, Any] = {
            k: make_optimizer(self.parameters[k], x) for k, x in configs.items()
        }
        self._reducers = {
            name: parallel.Reducer(parts_of(some)) for name, some in self.parameters.items()
        }
        for name, optimizer in self.optimizers.items():
            device = self.parameters[name][0].device
            if keeps_numbers(global_config, device):
                optimizer.keep_rates(device)
        # A schedule sets the optimizer's rate when it is made.
        self.schedules: dict[str, torch.optim.lr_scheduler.LambdaLR] = {}
        for name, config in configs.items():
            if factor := _factor(config.learning_rate, global_config):
                schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizers[name], factor)
                self.schedules[name] = schedule
        self._by_step = {k for k, own in configs.items() if own.learning_rate.step_every_batch}

    def backward(self, name: str, loss: Tensor, batches: OneBatch) -> None:
        """Add the gradients of a loss to those of the parts before, if any."""
        from offrl.kernels.optim import parts_of

        if batches.begins:
            self.optimizers[name].zero_grad()
        if batches.ends:
            self._reducers[name].begin()
        loss = loss if batches.share == 1 else batches.share * loss
        loss.backward(inputs=parts_of(self.parameters[name]))

    def step(
        self, name: str, net: "torch.nn.Module", limit: float | None, measures: bool
    ) -> Tensor | None:
        """Make an optimizer step of a network. Returns the squared norm of the gradient, if it is
        clipped or measured."""
        optimizer, parameters = self.optimizers[name], self.parameters[name]
        self._reducers[name].finish()
        norm = None
        if measures or limit is not None:
            norm = clip_gradients(net, parameters, limit).detach().square()
        optimizer.tell_rates()
        optimizer.step()
        return norm

    def count_step(self, name: str) -> None:
        """Update the learning rate of a network if that counts steps, of which one was made."""
        if name in self._by_step and name in self.schedules:
            self.schedules[name].step()

    def tell_rates(self) -> None:
        """Tell the device the learning rates of the next steps, if it keeps them."""
        for optimizer in self.optimizers.values():
            optimizer.tell_rates()

    def on_epoch_end(self) -> None:
        """Update the learning rates whose schedules count epochs."""
        with warnings.catch_warnings():
            # A training that was resumed right here made its steps in another process.
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for name in self.schedules.keys() - self._by_step:
                self.schedules[name].step()

    def serialize(self) -> dict[str, Any]:
        """Return their part of a checkpoint."""
        return {
            "optimizers": {name: own.state_dict() for name, own in self.optimizers.items()},
            "lr_schedulers": {name: own.state_dict() for name, own in self.schedules.items()},
        }

    def deserialize(self, state: Mapping[str, Any]) -> None:
        """Load a copy of their part of a checkpoint."""
        for name, stored in state.get("optimizers", {}).items():
            self.optimizers[name].load_state_dict(copy.deepcopy(stored))
        for name, stored in state.get("lr_schedulers", {}).items():
            if name in self.schedules:
                self.schedules[name].load_state_dict(stored)


def keeps_numbers(config: Config, device: "torch.device") -> bool:
    """Say if the device keeps the numbers that change from step to step (learning rates, decays),
    as captured steps need it. Runs without ``train.engine`` stay as they were."""
    engine = config.train.engine
    return engine == "compile" or (device.type == "cuda" and engine != "auto")


def make_optimizer(
    parameters: "Iterable[torch.nn.Parameter]", config: OptimConfig
) -> "torch.optim.Optimizer":
    """Make an optimizer that moves all parameters in one kernel per step;
    ``regularization.L2`` is the weight decay."""
    from offrl.kernels.optim import Adam, AdamW, RMSprop

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


def _factor(rate: LearningRateConfig, config: Config) -> Callable[[int], float] | None:
    """Return the factor on the initial rate as a function of epochs, or of optimizer steps with
    ``step_every_batch``; ``None`` if the rate is constant."""
    warmup = rate.warmup_steps
    if rate.scheduler_type == "cosine":
        total = _horizon(rate, config)

        def cosine(t: int) -> float:
            if t < warmup:
                return t / warmup
            progress = (t - warmup) / max(1, total - warmup)
            return max(0.0, 0.5 * (1 + math.cos(2 * math.pi * rate.num_cycles * progress)))

        return cosine
    if rate.scheduler_type.startswith("constant"):
        first = int(rate.scheduler_type == "constant")  # forks of robomimic begin with a rate of 0
        return (lambda t: min(1.0, (t + first) / warmup)) if warmup else None
    if not rate.epoch_schedule:
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
    """Return the length of the training in the unit of the schedule."""
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
    """Clip the gradient at a norm of ``limit``. Returns its norm then, or each member's."""
    from offrl.kernels.optim import clip_norm, total_norm

    own = getattr(net, "clip_gradients", None)
    if callable(own):
        return own(limit)
    gradients = [p.grad for p in parameters if p.grad is not None]
    if limit is None:
        return total_norm(gradients)
    return clip_norm(gradients, limit).clamp(max=limit)
