"""Networks that consist of an encoder, a trunk and a head."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offrl.config import Section
from offrl.config.section import options_of
from offrl.models import heads, transformer, trunks  # noqa: F401 (they fill the registries)
from offrl.models.encoder import Encoder, Obs
from offrl.models.trunks import EVERY_STEP
from offrl.registry import HEADS, TRUNKS
from offrl.specs import ObsSpec


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
        """Give the head's output, and the trunk's state after the last step (``None`` without one).

        given: more features ``[B, T, D]``, in front of those of the observations.
        answers: the steps that the output is for.
        """
        parts = [] if given is None else [given]
        if self.encoder is not None:
            features = self.encoder(obs, goal)
            if given is not None:  # several for one step
                features = features.expand(-1, given.shape[1], -1)
            parts.append(features)
        features, state = self.trunk(torch.cat(parts, dim=-1), state, answers)
        return self.head(features), state


def actor_from_config(
    config: Section, spec: ObsSpec, ac_dim: int, num_frames: int = 1, is_discrete: bool = False
) -> Actor:
    """Make the actor that robomimic's switches (``gaussian.enabled``, ``rnn.enabled``, ...)
    describe. This is the one place where the switches are read.

    config: an algorithm's section with the switches and ``actor_layer_dims``.
    num_frames: so many observations make one step.
    is_discrete: a probability for each of ``ac_dim`` actions; ``ValueError`` if a switch asks for
        another head.
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
