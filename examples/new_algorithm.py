"""A whole algorithm in one file. Copy it, give it another name, and change the update.

    offrl train --config examples/new_algorithm.json

The file registers the algorithm under the file's own name. A config names it by its dotted path,
``"algo_name": "examples.new_algorithm"``, seen from the folder in which you call ``offrl`` or from
an installed package. This algorithm clones actions with the absolute error; outliers change it less
than the squared error. ``offrl.testing.check_algo("examples.new_algorithm")`` tests it.
"""

from pydantic import Field

from offrl import models, register_algo
from offrl.algos import PolicyAlgo, masked_mean
from offrl.config import AlgoConfig


class RobustBCConfig(AlgoConfig):
    """The section ``algo`` of a config: keys, types and defaults."""

    ALGO_NAME = "new_algorithm"

    OPTIMIZERS = {"policy": 1e-4}  # the learning rate of each network

    actor_layer_dims: list[int] = Field([256, 256], description="Sizes of the hidden layers.")
    error_scale: float = Field(1.0, description="Factor on the error, and so on the gradient.")


@register_algo(RobustBCConfig)
class RobustBC(PolicyAlgo):
    NEEDS = ("obs", "actions")  # what it reads of a batch

    algo_config: RobustBCConfig

    def _create_networks(self):
        # Observations to an action: an encoder, an MLP and a tanh head.
        self.nets["policy"] = models.actor_from_config(self.algo_config, self.obs_spec, self.ac_dim)

    def update(self, batch):
        pi, _ = self.nets["policy"](batch["obs"])  # a goal, if there is one, is with them
        errors = (pi.mode() - batch["actions"]).abs().mean(-1)  # [B, T]
        loss = self.algo_config.error_scale * masked_mean(errors, batch["pad_mask"])
        return {"loss": loss, "Grad_Norms": self.optimize("policy", loss)}  # for the log

    def act(self, seen):
        obs = self.prepare(seen.obs, seen.goal)
        pi, state = self.nets["policy"](obs, state=seen.state)
        return pi.at(-1).sample(seen.generators), state
