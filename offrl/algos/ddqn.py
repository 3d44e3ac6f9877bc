"""Double DQN (van Hasselt et al., 2016, arXiv:1509.06461) on recorded data: the network chooses the
next action, and its target network values it.

Unlike the algorithms that derive from it, it trusts values of actions that the data does not show.
The defaults are those of the code of Fujimoto et al. (2019, arXiv:1910.01708) for vectors; the
target moves steadily instead of now and then. Of several critics the least value counts.
"""

from offrl import models
from offrl.algos.base import Batch, Info, register_algo
from offrl.algos.shared.action_values import ActionValues
from offrl.config.algo import DISCRETE, CriticConfig, EnsembleConfig, TDConfig
from offrl.lazy import torch


class DDQNConfig(TDConfig):
    ALGO_NAME = "ddqn"
    DEFAULTS = {"train": {"batch_size": 64, "action_config": DISCRETE}}

    OPTIMIZERS = {"critic": 3e-4}
    critic: CriticConfig = CriticConfig(
        use_huber=True, layer_dims=[256, 256], ensemble=EnsembleConfig(n=1)
    )


@register_algo(DDQNConfig)
class DDQN(ActionValues):
    algo_config: DDQNConfig

    def _create_networks(self) -> None:
        self.add_critics(models.DiscreteCritics)

    def update(self, batch: Batch) -> Info:
        with torch.no_grad():
            # r + gamma Q'(s', argmax_a Q(s', a))
            target = self.backup(batch, self.best_guess(batch["next_obs"]))
        losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, losses) | {"Critic/Q_Targets": target.mean()}
        self.update_targets()
        return info
