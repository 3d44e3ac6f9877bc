"""Double DQN (van Hasselt et al., 2016, arXiv:1509.06461) on recorded data: the network chooses
the next action, its slow copy says what that is worth.

It believes the values of actions that the data does not show; the algorithms that derive from it do
not. The defaults are those of the code of Fujimoto et al. (2019, arXiv:1910.01708) for vectors; the
target moves steadily instead of now and then. Of several critics the least value counts.
"""

from typing import Any

import torch
from torch import Tensor

from offrl import models
from offrl.algos.base import PolicyAlgo, register_algo
from offrl.algos.shared.td import TDLearner
from offrl.config import OptimConfig
from offrl.config.algo import CriticConfig, EnsembleConfig, TDConfig, learning_rates


class DDQNConfig(TDConfig):
    ALGO_NAME = "ddqn"
    DEFAULTS = {
        "train": {"batch_size": 64, "action_config": {"actions": {"format": "discrete"}}},
    }

    optim_params: dict[str, OptimConfig] = learning_rates(critic=3e-4)
    critic: CriticConfig = CriticConfig(
        use_huber=True, layer_dims=[256, 256], ensemble=EnsembleConfig(n=1)
    )


@register_algo(DDQNConfig)
class DDQN(TDLearner, PolicyAlgo):
    """It has no actor: the policy takes the action of the highest value."""

    algo_config: DDQNConfig

    ACTIONS = ("discrete",)

    def _create_networks(self) -> None:
        self.add_critics(models.DiscreteCritics)

    def update(self, batch: dict[str, Any]) -> dict[str, Tensor | None]:
        next_obs, goal = batch["next_obs"], batch["goal_obs"]
        with torch.no_grad():
            # r + gamma Q'(s', argmax_a Q(s', a))
            best = self.best_guess(next_obs, goal)
            value = self.nets["critic_target"](next_obs, best, goal).amin(0)
            target = batch["rewards"] + batch["discounts"] * value
        losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, losses) | {"Critic/Q_Targets": target.mean()}
        self.update_targets()
        return info

    # -- acting -----------------------------------------------------------------------------------

    def scores(self, obs: Any, goal: Any) -> Tensor:
        """What the policy chooses the highest of, ``[B, A]``, for what the networks see."""
        return self.nets["critic"].values(obs, goal).amin(0)

    def best_guess(self, obs: Any, goal: Any) -> Tensor:
        """The policy's action, one-hot ``[B, 1, A]``."""
        best = self.scores(obs, goal).argmax(-1, keepdim=True)
        return torch.nn.functional.one_hot(best, self.ac_dim).float()

    def act(
        self, obs: Any, goal: Any = None, state: Any = None, generators: Any = None
    ) -> tuple[Tensor, Any]:
        return self.action_distribution(obs, goal)[0].action[:, 0], state

    def action_distribution(self, obs: Any, goal: Any = None, state: Any = None) -> Any:
        best = self.best_guess(self.prepare_obs(obs), self.prepare_obs(goal, "goal"))
        return models.Deterministic(best), state
