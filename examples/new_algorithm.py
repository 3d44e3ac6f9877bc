"""A new algorithm is one file: copy this one, rename it and change the update.

    offrl train --config examples/new_algorithm.json

The file registers under its own name, and a config reaches it by its dotted path,
``"algo_name": "examples.new_algorithm"``, from the folder in which you call ``offrl`` or from an
installed package. This one clones actions with the absolute error, which outliers disturb less
than the squared one.
"""

from offrl import models, register_algo_factory_func
from offrl.algos.base import PolicyAlgo
from offrl.config import AlgoConfig, OptimConfig


class RobustBCConfig(AlgoConfig):
    """The section ``algo`` of a config: keys, types and defaults."""

    ALGO_NAME = "new_algorithm"

    optim_params: dict[str, OptimConfig] = {"policy": OptimConfig()}  # one for each network
    actor_layer_dims: list[int] = [256, 256]
    error_scale: float = 1.0


@register_algo_factory_func("new_algorithm")
def algo_config_to_class(algo_config):
    return RobustBC, {}


class RobustBC(PolicyAlgo):
    def _create_networks(self):
        # Observations to an action: an encoder, an MLP and a tanh head.
        self.nets["policy"] = models.actor_from_config(self.algo_config, self.obs_spec, self.ac_dim)

    def process_batch_for_training(self, batch):
        return {
            "obs": self.prepare_obs(batch["obs"]),  # {key: [B, T, ...]}
            "actions": self.to_device(batch["actions"]),  # [B, T, A]
        }

    def train_on_batch(self, batch, epoch, validate=False):
        pi, _ = self.nets["policy"](batch["obs"])
        loss = self.algo_config.error_scale * (pi.mode() - batch["actions"]).abs().mean()
        if not validate:
            self.optimize("policy", loss)
        return {"loss": loss.detach()}

    def act(self, obs, goal=None, state=None, generators=None):
        pi, state = self.nets["policy"](self.prepare_obs(obs), None, state)
        return pi.at(-1).sample(generators), state
