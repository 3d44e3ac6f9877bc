"""Networks that consist of an encoder, a trunk and heads: actors, and actors with a value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from offrl.config import Section
from offrl.config.section import options_of
from offrl.kernels.layers import Linear, SmallBatchLayers
from offrl.models import heads, transformer, trunks  # noqa: F401 (they fill the registries)
from offrl.models.encoder import Encoder, Obs
from offrl.models.trunks import EVERY_STEP, MLP, RNN, over_episodes
from offrl.registry import HEADS, TRUNKS
from offrl.specs import GOAL, ObsSpec


class Actor(nn.Module):
    """``pi(a | s, g)``: observations ``[B, T, ...]`` to a distribution over ``[B, T, A]``.

    Without an encoder it sees only the features ``given``.
    """

    def __init__(self, encoder: nn.Module | None, trunk: nn.Module, head: nn.Module):
        super().__init__()
        self.encoder, self.trunk, self.head = encoder, trunk, head

    def forward(
        self,
        obs: Obs,
        goal: Obs | None = None,
        state: Any = None,
        given: Tensor | None = None,
        answers: slice = EVERY_STEP,
    ) -> tuple[Any, Any]:
        """Return the head's output, and the trunk's state after the last step, if it has one.

        given: more features ``[B, T, D]``, placed before those of the observations.
        answers: the steps that the output is for.
        """
        parts = [] if given is None else [given]
        if self.encoder is not None:
            if goal is None and isinstance(obs, Mapping):  # for encoders of a user's own
                goal = obs.get(GOAL)  # type: ignore[assignment]
            features = self.encoder(obs, goal)
            if given is not None:  # several vectors for one step
                features = features.expand(-1, given.shape[1], -1)
            parts.append(features)
        features, state = self.trunk(torch.cat(parts, dim=-1), state, answers)
        return self.head(features), state


class ActorValue(nn.Module):
    """Observations ``{key: [R, num_frames, ...]}`` of ``R`` steps to a distribution over actions
    ``[R, 1, A]`` and to values ``[R]``.

    Each has layers of its own, and an encoder of its own unless ``share_encoder``. With ``rnn``,
    options of the trunk ``RNN``, both see one encoder's features through one memory.

    orthogonal: initial weights are orthogonal, with the gain sqrt(2), but 0.01 in the policy's last
        layer and 1 in the value's; biases are zero.
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
        self._few_rows: SmallBatchLayers | None = None
        is_plain = rnn is None and not self.encoder.has_weights
        if is_plain and hasattr(self.actor_head, "draw"):
            parts = [*self.actor_trunk.modules(), *self.actor_head.modules()]
            layers = [part for part in parts if isinstance(part, Linear)]
            self._few_rows = SmallBatchLayers(layers, activation)
        if orthogonal:
            _make_orthogonal(self, 2**0.5)
            _make_orthogonal(self.actor_head, 0.01)
            _make_orthogonal(self.value_head, 1.0)

    def forward(
        self, obs: Obs, state: Any = None, starts: Tensor | None = None
    ) -> tuple[Any, Tensor, Any]:
        """Return the policy, the values, and the memory's next state.

        starts: ``[B, L]``, true where an episode begins, if the rows are ``B`` successive segments
            of ``L`` steps; ``state`` is then that before their first steps. ``None``: each row is
            one step, with a row of the state.
        """
        features, state = self._features(obs, state, starts)
        own = features if self.value_encoder is None else self.value_encoder(obs)
        values = self.value_head(self.value_trunk(own)[0])
        return self.actor_head(self.actor_trunk(features)[0]), values.flatten(), state

    def policy(self, obs: Obs, state: Any = None, starts: Tensor | None = None) -> tuple[Any, Any]:
        """Return only the policy, and the memory's next state."""
        features, state = self._features(obs, state, starts)
        return self.actor_head(self.actor_trunk(features)[0]), state

    def is_quick(self, num_rows: int) -> bool:
        """Say whether ``quick_sample`` can be used, and is faster than PyTorch for so many rows."""
        return self._few_rows is not None and self._few_rows.pays(num_rows)

    def quick_sample(self, obs: Obs) -> NDArray[np.float32]:
        """Draw actions ``[R, A]`` in NumPy, one step per row, by PyTorch's global random state."""
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


def actor_from_config(
    config: Section, spec: ObsSpec, ac_dim: int, num_frames: int = 1, is_discrete: bool = False
) -> Actor:
    """Make the actor that robomimic's switches (``gaussian.enabled``, ``rnn.enabled``, ...)
    describe. This is the one place where the switches are read.

    config: an algorithm's section with the switches and ``actor_layer_dims``.
    num_frames: the number of observations that make one step.
    is_discrete: use a probability for each of ``ac_dim`` actions; refuse other heads.
    """
    encoder = encoder_from_config(config, spec, num_frames)
    trunk = trunk_from_config(config, encoder.output_dim, config["actor_layer_dims"])
    switches = [head for head in ("gaussian", "gmm", "vae") if head in config]
    enabled = [head for head in switches if config[head].enabled]
    if is_discrete and enabled:
        raise ValueError(
            f"algo.{enabled[0]}.enabled: is for real-valued actions, but train.action_config says "
            "that they are discrete; set it to false"
        )
    name = "categorical" if is_discrete else next(iter(enabled), "deterministic")
    options = options_of(config[name], "low_noise_eval") if enabled else {}
    return Actor(encoder, trunk, HEADS[name](trunk.output_dim, ac_dim, **options))


def mlp_actor(
    spec: ObsSpec,
    ac_dim: int,
    layer_dims: Sequence[int],
    head: str = "deterministic",
    num_frames: int = 1,
    **options: Any,
) -> Actor:
    """Make an actor of fully connected layers, for one step at a time.

    head: a name in the registry ``HEADS``; ``options`` are its arguments.
    """
    encoder = Encoder(spec, num_frames=num_frames)
    trunk = TRUNKS["mlp"](encoder.output_dim, layer_dims)
    return Actor(encoder, trunk, HEADS[head](trunk.output_dim, ac_dim, **options))


def mlp_outputs(
    spec: ObsSpec,
    shapes: Mapping[str, Sequence[int]],
    layer_dims: Sequence[int],
    num_frames: int = 1,
    given_dim: int = 0,
) -> Actor:
    """Make a network of fully connected layers with several outputs, ``{name: [B, T, *shape]}``.

    given_dim: the number of features ``given`` besides observations.
    """
    encoder = Encoder(spec, num_frames=num_frames)
    trunk = TRUNKS["mlp"](given_dim + encoder.output_dim, layer_dims)
    return Actor(encoder, trunk, heads.Outputs(trunk.output_dim, shapes))


def encoder_from_config(config: Section, spec: ObsSpec, num_frames: int = 1) -> Encoder:
    """Make the encoder of an algorithm's section."""
    has_transformer = "transformer" in config and config["transformer"].enabled
    return Encoder(spec, core_relu=not has_transformer, num_frames=num_frames)


def trunk_from_config(config: Section, input_dim: int, layer_dims: Sequence[int]) -> Any:
    """Make the Transformer, the RNN with ``layer_dims`` behind it or the MLP of ``layer_dims``."""
    if "transformer" in config and config["transformer"].enabled:
        options = options_of(config["transformer"], "supervise_all_steps", "pred_future_acs")
        return TRUNKS["transformer"](input_dim, **options)
    if "rnn" in config and config["rnn"].enabled:
        return TRUNKS["rnn"](input_dim, layer_dims, **options_of(config["rnn"]))
    return TRUNKS["mlp"](input_dim, layer_dims)
