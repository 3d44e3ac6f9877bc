"""A policy ``pi(a | s)`` and its value ``V(s)`` in one network."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from offrl.kernels.few_rows import FewRows
from offrl.kernels.linear import Linear
from offrl.models import heads  # noqa: F401 (it fills the registry)
from offrl.models.encoder import Encoder, Obs
from offrl.models.trunks import MLP, RNN, over_episodes
from offrl.registry import HEADS
from offrl.specs import ObsSpec


class ActorValue(nn.Module):
    """Observations ``{key: [R, num_frames, ...]}`` of ``R`` steps to a distribution over actions
    ``[R, 1, A]`` and to values ``[R]``.

    Each has layers of its own, and an encoder of its own unless ``share_encoder``. With ``rnn``,
    options of the trunk ``RNN``, both see one encoder's features through one memory.

    orthogonal: weights are orthogonal at the start, of the gain sqrt(2), but 0.01 before the
        policy's output and 1 before the value; biases are zero.
    """

    def __init__(
        self,
        spec: ObsSpec,
        ac_dim: int,
        actor_layer_dims: Sequence[int],
        value_layer_dims: Sequence[int],
        head: str = "categorical",
        activation: str = "tanh",
        num_frames: int = 1,
        share_encoder: bool = False,
        orthogonal: bool = True,
        rnn: Mapping[str, Any] | None = None,
        **head_options: Any,
    ):
        super().__init__()
        self.encoder = Encoder(spec, num_frames=num_frames)
        self.memory = self.value_encoder = None
        dim = self.encoder.output_dim
        if rnn is not None:
            self.memory = RNN(dim, [], horizon=None, **rnn)
            dim = self.memory.output_dim
        elif not share_encoder and self.encoder.has_weights:
            self.value_encoder = Encoder(spec, num_frames=num_frames)
        self.actor_trunk = MLP(dim, actor_layer_dims, activation)
        self.actor_head = HEADS[head](self.actor_trunk.output_dim, ac_dim, **head_options)
        self.value_trunk = MLP(dim, value_layer_dims, activation)
        self.value_head = Linear(self.value_trunk.output_dim, 1)
        self._few_rows: FewRows | None = None
        is_plain = rnn is None and not self.encoder.has_weights
        if is_plain and hasattr(self.actor_head, "draw"):
            parts = [*self.actor_trunk.modules(), *self.actor_head.modules()]
            layers = [part for part in parts if isinstance(part, Linear)]
            self._few_rows = FewRows(layers, activation)
        if orthogonal:
            _make_orthogonal(self, 2**0.5)
            _make_orthogonal(self.actor_head, 0.01)
            _make_orthogonal(self.value_head, 1.0)

    def forward(
        self, obs: Obs, state: Any = None, starts: Tensor | None = None
    ) -> tuple[Any, Tensor, Any]:
        """Give the policy, the values, and the memory's next state.

        starts: ``[B, L]`` where the rows are ``B`` segments of ``L`` steps, one behind the other:
            true where an episode begins. ``state`` is that before the first one. Without it, each
            row is one step, with a row of the state.
        """
        features, state = self._features(obs, state, starts)
        own = features if self.value_encoder is None else self.value_encoder(obs)
        values = self.value_head(self.value_trunk(own)[0])
        return self.actor_head(self.actor_trunk(features)[0]), values.flatten(), state

    def policy(self, obs: Obs, state: Any = None, starts: Tensor | None = None) -> tuple[Any, Any]:
        """Give the policy alone, and the memory's next state."""
        features, state = self._features(obs, state, starts)
        return self.actor_head(self.actor_trunk(features)[0]), state

    def is_quick(self, num_rows: int) -> bool:
        """Say whether ``quick_sample`` is there, and quicker than PyTorch with so many rows."""
        return self._few_rows is not None and self._few_rows.pays(num_rows)

    def quick_sample(self, obs: Obs) -> NDArray[np.float32]:
        """Draw a sample ``[R, A]`` of the policy, each row one step, in NumPy, from the global
        random state of PyTorch."""
        assert self._few_rows is not None
        return self.actor_head.draw(self._few_rows(self.encoder(obs)[:, 0]))

    def _features(self, obs: Obs, state: Any, starts: Tensor | None) -> tuple[Tensor, Any]:
        features = self.encoder(obs)
        if self.memory is None:
            return features, state
        if starts is None:
            return self.memory(features, state)
        segments = features.view(*starts.shape, -1)
        output, state = over_episodes(self.memory, segments, state, starts)
        return output.flatten(0, 1)[:, None], state


def _make_orthogonal(net: nn.Module, gain: float) -> None:
    for module in net.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(module.weight, gain)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
