"""A policy that predicts chunks of actions, with a network of its own, in one file. Copy it, give
it another name, and change the network or the update.

    offrl train --config examples/new_chunk_policy.json

From the last ``horizon.observation_horizon`` observations the policy predicts the actions of
``horizon.prediction_horizon`` steps. offrl plays ``horizon.action_horizon`` of them before it asks
for the next chunk. ``offrl.testing.check_algo("examples.new_chunk_policy")`` tests this file.
"""

from torch import nn

from offrl import models, register_algo
from offrl.algos import ChunkConfig, ChunkPolicy, masked_mean


class ChunkRegressionConfig(ChunkConfig):
    """The section ``algo`` of a config. ``ChunkConfig`` has the lengths of chunks, ``horizon``."""

    ALGO_NAME = "new_chunk_policy"

    OPTIMIZERS = {"policy": 1e-3}  # the learning rate of each network

    layer_dims: list[int] = [256, 256]
    """Sizes of the hidden layers."""


class ChunkNetwork(nn.Module):
    """Observations ``{key: [B, To, ...]}`` to a chunk ``[B, Tp, A]``."""

    def __init__(self, obs_spec, ac_dim, horizon, layer_dims):
        super().__init__()
        self.shape = horizon.prediction_horizon, ac_dim
        # All keys, also images and goals, of To steps to features [B, 1, F].
        self.encoder = models.Encoder(obs_spec, num_frames=horizon.observation_horizon)
        num_outputs = horizon.prediction_horizon * ac_dim
        self.mlp = models.perceptron(self.encoder.output_dim, layer_dims, num_outputs)

    def forward(self, obs):
        return self.mlp(self.encoder(obs)[:, 0]).tanh().unflatten(-1, self.shape)


@register_algo(ChunkRegressionConfig)
class ChunkRegression(ChunkPolicy):
    algo_config: ChunkRegressionConfig

    def _create_networks(self):
        config = self.algo_config
        self.nets["policy"] = ChunkNetwork(
            self.obs_spec, self.ac_dim, config.horizon, config.layer_dims
        )

    def update(self, batch):
        chunk = self.nets["policy"](batch["obs"])
        errors = (chunk - batch["actions"]).abs().mean(-1)  # [B, Tp]
        loss = masked_mean(errors, batch["pad_mask"])
        return {"loss": loss, "Grad_Norms": self.optimize("policy", loss)}  # for the log

    def sample(self, obs, goal, generators):
        return self.nets["policy"](obs)  # a goal, if there is one, is with the observations
