"""The base of diffusion policies and flows: networks that turn noise into chunks of actions."""

import inspect
import logging
from collections.abc import Callable
from math import lcm
from operator import attrgetter
from time import perf_counter
from typing import Any

from pydantic import Field, model_validator

from offrl import models
from offrl.algos.base import Generators, Obs, masked_mean
from offrl.algos.shared.chunks import ChunkConfig, ChunkPolicy
from offrl.config import Count, Section
from offrl.config.algo import adamw
from offrl.config.section import check_one_enabled, options_of
from offrl.lazy import Tensor, needed, torch
from offrl.registry import did_you_mean
from offrl.specs import with_goal

log = logging.getLogger(__name__)


class UNetConfig(Section):
    enabled: bool = True
    """Let the network be a U-Net over time."""
    diffusion_step_embed_dim: int = Field(256, ge=4, multiple_of=2)
    """Size of the embedding of the denoising time."""
    down_dims: list[Count] = Field([256, 512, 1024], min_length=1)
    """Numbers of channels of the levels, multiples of n_groups, the first of 8 as well. Each level
    but the last halves the time, as often as prediction_horizon can be halved at most."""
    kernel_size: Count = 5
    """Length of the convolutions, an odd number."""
    n_groups: Count = 8
    """Number of groups of channels that are normalised."""

    @model_validator(mode="after")
    def _fits(self) -> "UNetConfig":
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size: {self.kernel_size} is even; use an odd number")
        for i, dim in enumerate(self.down_dims):
            multiple = lcm(self.n_groups, 8) if i == 0 else self.n_groups
            if dim % multiple:
                raise ValueError(
                    f"down_dims: {dim} is no multiple of {multiple} (n_groups, and 8 for the "
                    "first); choose others"
                )
        return self


class DenoisingTransformerConfig(Section):
    enabled: bool = False
    """Let the network be a Transformer."""
    embed_dim: int = Field(256, ge=4, multiple_of=2)
    """Size of an embedding."""
    num_layers: Count = 8
    """Number of layers."""
    num_heads: Count = 4
    """Number of attention heads; embed_dim is a multiple."""
    emb_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_dropout: float = Field(0.3, ge=0, lt=1)
    """Dropout of layers."""
    causal: bool = True
    """Let no action see those behind it."""


class DenoisingConfig(ChunkConfig):
    """Base of the sections ``algo`` of diffusion policies and flows."""

    DEFAULTS = {"train": {"ema": {"enabled": True}}}

    OPTIMIZERS = {
        "policy": adamw(1e-6, scheduler_type="cosine", warmup_steps=500, step_every_batch=True)
    }
    unet: UNetConfig = UNetConfig()
    """A U-Net over time."""
    transformer: DenoisingTransformerConfig = DenoisingTransformerConfig()
    """A Transformer over time."""

    @model_validator(mode="after")
    def _fits(self) -> "DenoisingConfig":
        check_one_enabled(self, "unet", "transformer")
        num_levels, steps = len(self.unet.down_dims), self.horizon.prediction_horizon
        multiple = 2 ** (num_levels - 1)
        if self.unet.enabled and steps % multiple:
            raise ValueError(
                f"algo.horizon.prediction_horizon: {steps} is no multiple of {multiple}, and the "
                f"{num_levels} levels of algo.unet.down_dims halve the time {num_levels - 1} "
                "times; change one of them"
            )
        return self


class DenoisingPolicy(ChunkPolicy):
    """One network, ``policy``, which predicts a target from noisy actions.

    A subclass says in ``corrupt`` how actions become noise, and in ``sample`` the way back.
    """

    algo_config: DenoisingConfig

    steps_key: str  #: The key of ``algo`` with the number of denoising steps.

    def _create_networks(self) -> None:
        horizon = self.algo_config.horizon
        self.nets["policy"] = models.denoiser_from_config(
            self.algo_config,
            self.obs_spec,
            self.ac_dim,
            num_frames=horizon.observation_horizon,
            num_steps=horizon.prediction_horizon,
        )

    def corrupt(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make noisy actions ``[B, Tp, A]``. Returns these, their times ``[B]`` and what to predict
        from them."""
        raise NotImplementedError(type(self).__name__)

    def begin(self, obs: Obs, generators: Generators) -> tuple[Tensor, Tensor]:
        """Encode observations, and draw the noise ``[B, Tp, A]`` that becomes chunks."""
        seen = self.nets["policy"].encoder(obs)
        shape = len(seen), self.algo_config.horizon.prediction_horizon, self.ac_dim
        return seen, models.random_rows("randn", seen.new_zeros(shape), generators)

    def warn_if_slow(self, control_freq: float) -> None:
        """Measure a denoising step, and log how long a chunk takes if that is longer than a control
        step (``control_freq`` in Hz)."""
        obs, goal = self.obs_spec.shapes("obs"), self.obs_spec.shapes("goal")
        frames = {key: torch.zeros(1, self.num_frames, *shape) for key, shape in obs.items()}
        seen = with_goal(frames, {key: torch.zeros(1, *shape) for key, shape in goal.items()})
        num_steps = attrgetter(self.steps_key)(self.algo_config)
        with torch.no_grad(), self.at_rest():
            drawn = [torch.Generator().manual_seed(0)]
            encoded, noise = self.begin(self.to_device(seen), drawn)
            for _ in range(2):  # the first also warms up
                begun = perf_counter()
                self.nets["policy"](noise, torch.zeros(1, device=self.device), encoded).cpu()
                seconds = num_steps * (perf_counter() - begun)
        if seconds * control_freq <= 1:
            return
        millions = sum(p.numel() for p in self.nets.parameters()) / 1e6
        width = "unet.down_dims" if self.algo_config.unet.enabled else "transformer.num_layers"
        log.warning(
            f"{self.global_config.algo_name}: {millions:.1f}M parameters, and a chunk of actions "
            f"takes {seconds:.3g} s here ({self.device}), longer than a step of the control "
            f"({1 / control_freq:.2g} s); fewer of the {num_steps} steps (algo.{self.steps_key}) "
            f"or a smaller network (algo.{width}) make it faster"
        )

    def update(self, batch: dict[str, Any]) -> dict[str, Any]:
        net = self.nets["policy"]
        noisy, time, target = self.corrupt(batch["actions"])
        predicted = net(noisy, time, net.encoder(batch["obs"]))
        loss = masked_mean((predicted - target).square().mean(-1), batch["pad_mask"])
        return {"loss": loss, "Policy_Grad_Norms": self.optimize("policy", loss)}


# -- schedulers of diffusers -----------------------------------------------------------------------


def denoise(
    sampler: Any, noise: Tensor, num_steps: int, predict: Callable, generators: Generators
) -> Tensor:
    """Remove noise in ``num_steps`` steps, by what the network ``predict`` says of noisy actions at
    a time. Rows without a generator do not count."""
    options: dict[str, Any] = {}
    if generators is not None and "generator" in inspect.signature(sampler.step).parameters:
        options["generator"] = [g or torch.Generator().manual_seed(0) for g in generators]
    sampler.set_timesteps(num_steps)
    actions = noise * sampler.init_noise_sigma
    for time in sampler.timesteps:
        predicted = predict(sampler.scale_model_input(actions, time), time)
        actions = sampler.step(predicted, time, actions, **options).prev_sample
    return actions


def make_noise_schedule(config: Any) -> Any:
    """Make diffusers' DDPM or DDIM scheduler, which adds noise and removes it."""
    what = "diffusion_policy needs the package diffusers, which flow_matching does without"
    diffusers = needed("diffusers", "diffusion", what)
    options = options_of(config.schedule, "num_inference_timesteps")
    try:
        return getattr(diffusers, f"{config.kind.upper()}Scheduler")(**options)
    except NotImplementedError:
        raise ValueError(
            f"algo.{config.kind}.beta_schedule: diffusers has no schedule "
            f'{options["beta_schedule"]!r}; use "squaredcos_cap_v2", "linear" or "scaled_linear"'
        ) from None


def make_sampler(config: Any, sampler: Any) -> Any:
    """Make the scheduler that removes the noise which ``sampler`` adds: itself, or another one.
    Raises ``ValueError`` if it cannot do so in the steps of the config."""
    name = config.scheduler
    if name is not None:
        options = {kind: inspect.signature(kind).parameters for kind in sampler.compatibles}
        known = {kind.__name__: kind for kind, own in options.items() if "beta_schedule" in own}
        if name not in known:
            raise ValueError(
                f"algo.scheduler: diffusers has no {name!r} for this noise."
                f"{did_you_mean(name, known)} It has {', '.join(sorted(known))}"
            )
        # As diffusers advises for noise of squared cosines, which begins without any signal.
        takes_limit = "lambda_min_clipped" in options[known[name]]
        limit = {"lambda_min_clipped": -5.1} if takes_limit else {}
        sampler = known[name].from_config(sampler.config, **limit)
    num_steps = config.schedule.num_inference_timesteps
    try:
        denoise(sampler, torch.zeros(1, 1, 1), num_steps, lambda noisy, _: noisy, [None])
    except (ValueError, IndexError, NotImplementedError) as error:
        raise ValueError(
            f"algo: diffusers' {type(sampler).__name__} cannot remove noise so ({error}); change "
            "num_inference_timesteps, num_train_timesteps, steps_offset or prediction_type of "
            "algo.ddpm or algo.ddim, or algo.scheduler"
        ) from None
    return sampler
