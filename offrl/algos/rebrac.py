"""ReBRAC (Tarasov et al., 2023, arXiv:2305.09836): TD3+BC with the distance from the data's actions
penalised in the critic as well, deeper networks and layer normalisation."""

from collections.abc import Mapping
from typing import Any

from offrl.algos.base import Batch, register_algo
from offrl.algos.td3 import TD3, TD3ActorConfig
from offrl.algos.td3_bc import TD3BC, TD3BCConfig
from offrl.config import NonNegative
from offrl.config.algo import WeightedCriticConfig, learning_rates
from offrl.lazy import Tensor, torch


class ReBRACCriticConfig(WeightedCriticConfig):
    layer_norm: bool = True
    """Normalise the outputs of each hidden layer."""
    bc_coef: NonNegative = 0.01
    """Weight, in targets, of the squared distance of the policy's and data's action (beta 2)."""


class ReBRACActorConfig(TD3ActorConfig):
    bc_coef: NonNegative = 0.01
    """Weight, in the actor's loss, of the squared distance to the data's action (beta 1)."""


class ReBRACConfig(TD3BCConfig):
    ALGO_NAME = "rebrac"
    DEFAULTS = {"train": {"batch_size": 1024}}

    OPTIMIZERS = learning_rates(critic=1e-3, actor=1e-3, staged=True)
    alpha: NonNegative = 1.0
    """Weight of the normalised value."""
    critic: ReBRACCriticConfig = ReBRACCriticConfig(layer_dims=[256, 256, 256])
    actor: ReBRACActorConfig = ReBRACActorConfig(layer_dims=[256, 256, 256])


@register_algo(ReBRACConfig)
class ReBRAC(TD3BC):
    algo_config: ReBRACConfig

    @classmethod
    def window(cls, algo_config: Any) -> dict[str, int]:
        # The action that follows a transition is in the window.
        return {"seq_length": algo_config.n_step + 1}

    def add_critics(self, network: type | None = None, **options: Any) -> None:
        super().add_critics(network, layer_norm=self.algo_config.critic.layer_norm, **options)

    def process_batch_for_training(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        ready = super().process_batch_for_training(batch)
        after = self.num_frames - 1 + self.algo_config.n_step
        if batch["actions"].shape[1] <= after:
            raise ValueError(
                f"train.seq_length: {batch['actions'].shape[1] - self.num_frames + 1}, but rebrac "
                f"needs the action after algo.n_step = {self.algo_config.n_step} steps; set it to "
                f"{self.algo_config.n_step + 1}"
            )
        next_actions = self.to_device(batch["actions"][:, after : after + 1])
        mask = batch.get("pad_mask")
        known = torch.ones_like(next_actions[..., 0])
        if mask is not None:  # nothing follows the last step of a demonstration
            known = self.to_device(mask[:, after])
        return ready | {"next_actions": next_actions, "next_known": known}

    def next_value(self, batch: Batch, next_actions: Tensor) -> Tensor:
        distance = (next_actions - batch["next_actions"]).square().sum(-1)
        penalty = self.algo_config.critic.bc_coef * distance * batch["next_known"]
        return super().next_value(batch, next_actions) - penalty

    def policy_value(self, obs: Any, actions: Tensor) -> Tensor:
        return self.nets["critic"](obs, actions).amin(0)

    def cloning(self, actions: Tensor, recorded: Tensor) -> Tensor:
        return self.algo_config.actor.bc_coef * (actions - recorded).square().sum(-1).mean()

    update = TD3.update  # its ``loss`` is that of the critics only
