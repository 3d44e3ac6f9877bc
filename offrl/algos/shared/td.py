"""The base of learners of values: transitions, critics, targets, temporal differences."""

import copy
import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, ClassVar

from offrl import models
from offrl.algos.base import Batch, Obs, ValueAlgo, check_rewards
from offrl.config import OptimConfig
from offrl.config.algo import TDConfig, learning_rates
from offrl.lazy import Tensor, torch
from offrl.specs import GOAL, with_goal

log = logging.getLogger(__name__)
PHASES = ("bc_start_steps", "warmup_steps")  # keys: numbers of updates that go another way


class TDLearner(ValueAlgo):
    """Critics ``critic`` ``Q(s, a, g)``, regressed on rewards and later values.

    A batch is made of transitions: observations ``[B, frames, ...]``, actions ``[B, 1, A]``,
    rewards ``[B, 1]`` summed over ``n_step`` steps, and ``discounts`` ``[B, 1]``, the factor of the
    value after them: 0 where the episode terminated. It may have ``weights`` ``[B, 1]`` for samples
    of unequal probability. A network's target network (``self.add_target``) is ``<name>_target``.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("obs", "next_obs", "actions", "rewards", "dones")
    COUNTERS: ClassVar[tuple[str, ...]] = ("num_updates",)
    #: Learned numbers (``models.Scalar``), each with the network whose learning rate it has.
    NUMBERS: ClassVar[Mapping[str, str]] = {}
    #: Critics normalise the outputs of each hidden layer.
    LAYER_NORM: ClassVar[bool] = False
    #: With robomimic's complete configs, target networks are in training mode as well.
    TRAINS_TARGETS: ClassVar[bool] = False

    algo_config: TDConfig

    #: Of a batch with ``weights``: the mean absolute error of each sample, ``[B]``.
    td_errors: Tensor | None = None

    num_updates = 0

    def take_stock(self) -> None:
        super().take_stock()
        self._targets: dict[str, tuple[list[Tensor], list[Tensor], list[Any]]] = {}
        for name in [name for name in self.nets if f"{name}_target" in self.nets]:
            slow, fast = self.nets[f"{name}_target"], self.nets[name]
            statistics = [*zip(slow.buffers(), fast.buffers(), strict=True)]
            self._targets[name] = [*slow.parameters()], [*fast.parameters()], statistics

    @classmethod
    def window(cls, algo_config: TDConfig) -> dict[str, int]:
        return {"seq_length": algo_config.n_step}

    # -- networks ---------------------------------------------------------------------------------

    def add_critics(self, network: type | None = None, **options: Any) -> None:
        """Add ``critic`` (``models.Critics`` or another ``network``) and its target."""
        config = self.algo_config.critic
        self.nets["critic"] = (network or models.Critics)(
            self.obs_spec,
            self.ac_dim,
            config.layer_dims,
            num_frames=self.num_frames,
            value_bounds=config.value_bounds,
            **{"num_critics": config.ensemble.n, "layer_norm": self.LAYER_NORM, **options},
        )
        self.add_target("critic")

    def _optim_params(self) -> dict[str, OptimConfig]:
        given = super()._optim_params()
        like = {name: net for name, net in self.NUMBERS.items() if name in self.nets}
        rates: dict[str, Any] = {k: given[v].learning_rate.initial for k, v in like.items()}
        return given | learning_rates(**rates)

    def add_target(self, name: str) -> None:
        """Add a target network of ``nets[name]``, called ``<name>_target``."""
        self.nets[f"{name}_target"] = copy.deepcopy(self.nets[name]).requires_grad_(False).eval()

    def update_targets(self, *names: str) -> None:
        """Move all target networks, or those of ``names``, towards their networks by
        ``algo.target_tau`` (Polyak averaging, one kernel for the weights of each). Statistics of
        batch normalisation are copied. While validating nothing happens."""
        if self.validates:
            return
        self.microbatches.once(lambda: self._move_targets(names or tuple(self._targets)))

    def _move_targets(self, names: Iterable[str]) -> None:
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(1 - self.algo_config.target_tau)
        for name in names:
            slow, fast, statistics = self._targets[name]
            average(slow, fast, 0)
            for theirs, ours in statistics:
                theirs.copy_(ours)

    def sync_target(self) -> None:
        for slow, fast, _ in self._targets.values():
            for theirs, ours in zip(slow, fast, strict=True):
                theirs.data.copy_(ours.data)

    def set_train(self) -> None:
        super().set_train()
        as_robomimics = self.TRAINS_TARGETS and not self.global_config.train.mask_padded_steps
        for name in self._targets:
            self.nets[f"{name}_target"].train(as_robomimics)

    # -- batches ----------------------------------------------------------------------------------

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        if not self.global_config.train.goal_rewards:
            name = self.global_config.algo_name
            check_rewards(values("rewards"), name)
            if not values("dones").any():
                log.warning(
                    'no step of the data is terminal ("dones"): %s will take every episode to go '
                    "on for ever",
                    name,
                )
        if self.algo_config.critic.value_bounds:
            low, high = self.algo_config.critic.value_bounds
            if self.global_config.train.goal_rewards:  # -1 for ever at worst
                ahead = 1 - self.algo_config.discount
                least, largest = (-1 / ahead if ahead else -inf), 0.0
            else:
                least, largest = (float(x) for x in values("returns").aminmax())
            if least < low or largest > high:
                raise ValueError(
                    f"algo.critic.value_bounds: [{low:g}, {high:g}], but discounted returns reach "
                    f"from {least:g} to {largest:g}; widen them"
                )

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        n, now = self.algo_config.n_step, self.num_frames - 1
        steps = slice(now, now + n)
        if batch["actions"].shape[1] < now + n:
            raise ValueError(
                f"train.seq_length: {batch['actions'].shape[1] - now}, but algo.n_step is {n}; set "
                "both to the same number"
            )
        mask = batch.get("pad_mask")
        rewards, dones, discounts, num_steps = self._returns(
            self.to_device(batch["rewards"]).flatten(1)[:, steps],
            self.to_device(batch["dones"]).flatten(1)[:, steps],
            None if mask is None else self.to_device(mask).flatten(1)[:, steps],
        )
        goal = self.prepare_obs(batch.get("goal_obs"), "goal")
        ready = {
            "obs": with_goal(self.prepare_obs(frames_from(batch["obs"], 0, self.num_frames)), goal),
            "next_obs": with_goal(self.obs_after(batch, n, num_steps), goal),
            "goal_obs": goal,
            "actions": self.to_device(batch["actions"][:, now : now + 1]),
            "rewards": rewards,
            "dones": dones,
            "discounts": discounts,
        }
        if "weights" in batch:
            ready["weights"] = self.to_device(batch["weights"]).view(-1, 1)
        return ready

    def obs_after(
        self, batch: Mapping[str, Any], n: int, num_steps: Tensor | int
    ) -> dict[str, Tensor]:
        """Prepare the frames after a window's first ``n`` steps, of which ``num_steps`` count."""
        now = self.num_frames - 1
        later = frames_from(self.needed(batch, "next_obs"), n + now - 1, 1)
        if now:
            before = frames_from(batch["obs"], num_steps, now)
            later = {k: torch.cat([before[k], x], dim=1) for k, x in later.items()}
        return self.prepare_obs(later)

    def _returns(
        self, rewards: Tensor, dones: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | int]:
        """Compute, for steps ``[B, n]``, the discounted sum of their rewards, 1 if the episode
        terminated among them, and the factor of the value after them, ``[B, 1]`` each; and how many
        count, the same number or ``[B]``."""
        gamma, n = self.algo_config.discount, rewards.shape[1]
        after: Any = gamma
        num_steps: Any = n
        masks = self.global_config.train.mask_padded_steps
        goes_on = self.algo_config.infinite_horizon
        if goes_on and masks:  # the last reward is received for ever
            rewards = torch.where(dones > 0, rewards / (1 - gamma), rewards)
        if n > 1:
            counts = torch.ones_like(dones)
            if masks:
                # A step counts if it is in the demonstration and none before it was the last.
                counts[:, 1:] -= dones[:, :-1]
                counts = counts.cumprod(1) * (1 if mask is None else mask)
            powers = gamma ** torch.arange(n, device=self.device)
            rewards = (rewards * counts * powers).sum(1, keepdim=True)
            dones = (dones * counts).amax(1, keepdim=True)
            num_steps = counts.sum(1).long()
            after = gamma ** counts.sum(1, keepdim=True)
        if goes_on and not masks:  # robomimic's: all of the rewards are
            rewards = torch.where(dones > 0, rewards / (1 - after), rewards)
        return rewards, dones, (1 - dones) * after, num_steps

    # -- updates ----------------------------------------------------------------------------------

    def td_losses(self, q: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the loss of each critic, ``[N]``, for values ``[N, B, 1]``, targets ``[B, 1]``
        and, if the samples are weighted, their weights ``[B, 1]``."""
        kind = "smooth_l1_loss" if self.algo_config.critic.use_huber else "mse_loss"
        error = getattr(torch.nn.functional, kind)
        each = error(q, target.expand_as(q), reduction="none")
        self.td_errors = None
        if weights is not None:
            self.td_errors = (q.detach() - target).abs().mean((0, 2))
            each = weights * each
        return each.mean((1, 2))

    def backup(self, batch: Batch, next_actions: Tensor) -> Tensor:
        """Compute the critics' target ``[B, 1]`` for the best of next actions ``[B, K, A]``."""
        next_q = self.nets["critic_target"](batch["next_obs"], next_actions)
        value = self.pessimistic(next_q).amax(1, keepdim=True)
        return batch["rewards"] + batch["discounts"] * value

    def critic_losses(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute ``td_losses`` of the batch's actions, and their values ``[N, B, 1]``."""
        q = self.nets["critic"](batch["obs"], batch["actions"])
        return self.td_losses(q, target, batch.get("weights")), q

    def pessimistic(self, q: Tensor) -> Tensor:
        """Reduce the critics' values ``[N, ...]`` to the least, or in part the largest, by
        ``critic.ensemble.weight`` (Fujimoto et al., 2019, arXiv:1812.02900, equation 13)."""
        weight = getattr(self.algo_config.critic.ensemble, "weight", 1)
        return q.amin(0) if weight == 1 else weight * q.amin(0) + (1 - weight) * q.amax(0)

    def graph_key(self) -> tuple[Any, ...]:
        actor = getattr(self.algo_config, "actor", None)
        ends = [getattr(own, key, 0) for own in (self.algo_config, actor) for key in PHASES]
        every = getattr(actor, "update_freq", 1)
        numbers = self.num_updates, self.num_updates + 1  # before and after the critics' step
        phases = ((n % every == 0, *(n < end for end in ends)) for n in numbers)
        return *super().graph_key(), *phases

    def optimize_critics(self, batch: Batch, losses: Tensor) -> dict[str, Any]:
        """Make one optimizer step of each critic. Returns numbers for the log; ``loss`` is the sum
        of ``losses``, to which you add other losses."""
        info = {f"Critic/Critic{i}_Loss": loss for i, loss in enumerate(losses, 1)}
        info["Critic/Done_Mask_Percentage"] = 100 * (1 - batch["dones"]).mean()
        norms = self.optimize("critic", losses.sum())
        if norms is not None:
            info |= {f"Critic/Critic{i}_Grad_Norms": norm for i, norm in enumerate(norms, 1)}
        return info | {"loss": losses.detach().sum()}

    # -- values -----------------------------------------------------------------------------------

    def get_state_value(self, obs_dict: Obs, goal_dict: Any = None) -> Tensor:
        """Estimate the first critic's value ``[B, 1]`` of the ``best_guess``."""
        obs = self.prepare_states(obs_dict, goal_dict)
        likeliest = self.best_guess(obs, obs.get(GOAL))  # type: ignore[attr-defined]
        return self.nets["critic"].first(obs, likeliest)

    def get_state_action_value(
        self, obs_dict: Obs, actions: Tensor, goal_dict: Any = None
    ) -> Tensor:
        """Estimate the first critic's value ``[B, 1]`` of actions ``[B, A]``."""
        obs = self.prepare_states(obs_dict, goal_dict)
        return self.nets["critic"].first(obs, self.to_device(actions)[:, None])

    def log_info(self, info: Mapping[str, Tensor]) -> dict[str, float]:
        logs = super().log_info(info)
        rate = logs.pop("Optimizer/critic0_lr", None)
        if rate is not None:  # robomimic has an optimizer for each critic
            members = range(self.nets["critic"].num_critics)
            logs |= {f"Optimizer/critic{i}0_lr": rate for i in members}
        return logs


def spread(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Compute maximum, minimum, mean and standard deviation of each value, for the log."""
    rows = torch.stack([value.detach().flatten() for value in values.values()])
    std, mean = torch.std_mean(rows, dim=1)
    logs = {"max": rows.amax(1), "min": rows.amin(1), "mean": mean, "std": std}
    return {
        f"{name}/{kind}": number
        for kind, numbers in logs.items()
        for name, number in zip(values, numbers.unbind(), strict=True)
    }


def frames_from(obs: Obs, starts: Tensor | int, num: int) -> Obs:
    """Take ``num`` frames of windows ``[B, T, ...]`` from a start on: one for all, or ``[B]``."""
    if isinstance(starts, int):
        stop = starts + num
        return {k: x if x.shape[1] == num else x[:, starts:stop] for k, x in obs.items()}
    frames = starts[:, None] + torch.arange(num, device=starts.device)

    def take(x: Tensor) -> Tensor:
        index = frames.to(x.device).view(*frames.shape, *[1] * (x.ndim - 2))
        return torch.take_along_dim(x, index, dim=1)

    return {k: take(x) for k, x in obs.items()}
