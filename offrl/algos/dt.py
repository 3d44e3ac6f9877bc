"""Decision Transformer (Chen et al., 2021, arXiv:2106.01345): cloning that is told the return which
is to come, and asked for a high one while acting."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, model_validator

from offrl import models
from offrl.algos.base import (
    Batch,
    Info,
    Obs,
    PolicyAlgo,
    Seen,
    check_rewards,
    masked_mean,
    register_algo,
)
from offrl.config import AlgoConfig, Count, Positive, RewardsConfig, Steps
from offrl.config.algo import adamw
from offrl.lazy import Tensor, torch
from offrl.tree import map_leaves

log = logging.getLogger(__name__)


class DTConfig(AlgoConfig):
    ALGO_NAME = "dt"
    DEFAULTS = {"train": {"batch_size": 64, "max_grad_norm": 0.25}}

    OPTIMIZERS = {
        "policy": adamw(1e-4, scheduler_type="constant", warmup_steps=10000, step_every_batch=True)
    }
    context_length: Steps = 20
    """Number of steps that the policy remembers (K). train.seq_length follows, unless it is set."""
    embed_dim: Count = 128
    """Size of an embedding."""
    num_layers: Count = 3
    """Number of layers."""
    num_heads: Count = 1
    """Number of attention heads; embed_dim is a multiple."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of all layers."""
    max_timestep: Count = 1000
    """Number of timesteps with an embedding; later steps share the last one."""
    target_return: float | None = None
    """Return that the policy asks for while acting. null: the highest return in the data."""
    return_scale: Positive | None = None
    """Divisor of returns. null: the largest magnitude of a return in the data."""

    @model_validator(mode="after")
    def _heads_share_the_embedding(self) -> "DTConfig":
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"embed_dim ({self.embed_dim}) must be a multiple of num_heads ({self.num_heads})"
            )
        return self


@register_algo(DTConfig)
class DT(PolicyAlgo):
    """One network, ``policy``: ``pi(a_t | R_1, s_1, a_1, ..., R_t, s_t)``.

    While acting, an episode's state holds the last ``context_length`` steps from the front of its
    arrays on (so that no padding precedes them), the sum of rewards ``received``, and its ``age``.
    """

    algo_config: DTConfig

    NEEDS = ("obs", "actions", "returns", "timesteps")
    ACTIONS = ("real-valued", "discrete")
    COUNTS_REWARDS = True

    @classmethod
    def window(cls, algo_config: DTConfig) -> dict[str, int]:
        return {"seq_length": algo_config.context_length}

    def _create_networks(self) -> None:
        config, train = self.algo_config, self.global_config.train
        self.global_config.check_window("seq_length", "context_length", may_be_less=True)
        if train.rewards != RewardsConfig():
            raise ValueError(
                "train.rewards: while acting, dt counts rewards as the environment gives them; "
                "leave those of the data as they are, and scale returns with algo.return_scale"
            )
        if train.frame_stack > 1:
            log.warning(
                "train.frame_stack: dt remembers algo.context_length steps by itself; earlier "
                "frames are not used"
            )
        head = "categorical" if self.is_discrete else "deterministic"
        names = ("embed_dim", "num_layers", "num_heads", "dropout", "max_timestep")
        options = [config[name] for name in names]
        self.nets["policy"] = models.DecisionTransformer(self.obs_spec, self.ac_dim, head, *options)

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        check_rewards(values("rewards"), "dt")
        returns, net, config = values("returns", first=True), self.nets["policy"], self.algo_config
        net.return_scale.fill_(config.return_scale or float(returns.abs().max()) or 1.0)
        wanted = config.target_return
        net.target_return.fill_(float(returns.max()) if wanted is None else wanted)

    # -- training ---------------------------------------------------------------------------------

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        now = slice(self.num_frames - 1, None)
        keys = {"obs", "pad_mask", *self.NEEDS} & batch.keys()
        window = {key: map_leaves(lambda x: x[:, now], batch[key]) for key in keys}
        ready = super().process_batch_for_training({**batch, **window})
        return ready | {
            "returns": ready["returns"][..., None],
            "timesteps": window["timesteps"].to(self.device),
        }

    def update(self, batch: Batch) -> Info:
        net = self.nets["policy"]
        states = net.encoder(batch["obs"])
        pi = net.head(net(batch["returns"], states, batch["actions"], batch["timesteps"]))
        loss = masked_mean(pi.loss(pi.LOSSES[0], batch["actions"]), batch["pad_mask"])
        return {"loss": loss, "Policy_Grad_Norms": self.optimize("policy", loss)}

    # -- acting -----------------------------------------------------------------------------------

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        pi, state = self.action_distribution(seen.obs, seen.goal, seen.state)
        return pi.at(-1).low_noise().sample(seen.generators), state

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        net, length = self.nets["policy"], self.algo_config.context_length
        now = net.encoder(self.prepare(map_leaves(lambda x: x[:, -1:], obs), goal))[:, 0]
        state = state or self._start(now)
        age = state["age"]
        moves_on = (age >= length)[:, None, None]
        memory = {
            name: torch.where(moves_on, state[name].roll(-1, dims=1), state[name])
            for name in ("returns", "states", "actions")
        }
        wanted = net.target_return - state["received"]
        memory["returns"] = self._put(memory["returns"], age, wanted)
        memory["states"] = self._put(memory["states"], age, now)
        place = age.clamp(max=length - 1)
        timesteps = (age - place)[:, None] + torch.arange(length, device=self.device)
        rows = torch.arange(len(age), device=self.device)
        features = net(**memory, timesteps=timesteps)[rows, place]
        return net.head(features[:, None]), state | memory | {"age": age + 1}

    def receive(self, state: Any, action: Tensor, reward: Tensor) -> Any:
        return state | {
            "received": state["received"] + reward,
            "actions": self._put(state["actions"], state["age"] - 1, action),
        }

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        super().deserialize(state, load_optimizers)
        if self.algo_config.target_return is not None:  # may be another than that of the training
            self.nets["policy"].target_return.fill_(self.algo_config.target_return)

    def _start(self, now: Tensor) -> dict[str, Tensor]:
        batch_size, dim = now.shape
        length = self.algo_config.context_length
        return {
            "age": torch.zeros(batch_size, dtype=torch.long, device=self.device),
            "received": now.new_zeros(batch_size, 1),
            "returns": now.new_zeros(batch_size, length, 1),
            "states": now.new_zeros(batch_size, length, dim),
            "actions": now.new_zeros(batch_size, length, self.ac_dim),
        }

    def _put(self, memory: Tensor, age: Tensor, values: Tensor) -> Tensor:
        """Put each row's ``values`` ``[B, D]`` at the step of its ``age`` in ``[B, K, D]``."""
        place = age.clamp(max=memory.shape[1] - 1)
        return memory.index_put((torch.arange(len(age), device=self.device), place), values)
