"""Diffusion Policy (Chi et al., 2023, arXiv:2303.04137): denoise a chunk of actions, given the last
observations."""

import inspect
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from offrl.algos.base import Generators, Obs, register_algo
from offrl.algos.shared.denoising import DenoisingConfig, DenoisingPolicy
from offrl.config import Count, EMAConfig, Section
from offrl.config.section import check_one_enabled, options_of
from offrl.lazy import Tensor, needed, torch
from offrl.registry import did_you_mean


class DDPMConfig(Section):
    """Denoising Diffusion Probabilistic Models (Ho et al., 2020, arXiv:2006.11239)."""

    enabled: bool = True
    """Add and remove noise as DDPM does."""
    num_train_timesteps: Count = 100
    """Number of steps from actions to noise."""
    num_inference_timesteps: Count = 100
    """Number of steps from noise to actions while acting."""
    beta_schedule: str = "squaredcos_cap_v2"
    """How noise grows, by the name that diffusers has for it."""
    clip_sample: bool = True
    """Clip what is predicted of actions to [-1, 1] in each denoising step."""
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """What the network predicts: "epsilon", the noise; "sample", the actions; "v_prediction", a
    mixture of both (Salimans and Ho, 2022, arXiv:2202.00512)."""


class DDIMConfig(DDPMConfig):
    """Denoising Diffusion Implicit Models (Song et al., 2021, arXiv:2010.02502)."""

    enabled: bool = False
    """Remove noise as DDIM does, in fewer steps."""
    num_inference_timesteps: Count = 10
    set_alpha_to_one: bool = True
    """Let the last denoising step end without any noise."""
    steps_offset: int = Field(0, ge=0)
    """Added to the times of denoising steps."""


class DiffusionPolicyConfig(DenoisingConfig):
    ALGO_NAME = "diffusion_policy"

    ema: EMAConfig | None = Field(None, exclude=True, json_schema_extra={"deprecated": True})
    """robomimic's place of train.ema, which it is read as."""
    ddpm: DDPMConfig = DDPMConfig()
    """Diffusion as in DDPM."""
    ddim: DDIMConfig = DDIMConfig()
    """Diffusion as in DDIM."""
    scheduler: str | None = None
    """Another of diffusers' schedulers to remove noise with while acting, such as
    DPMSolverMultistepScheduler. null: that of ddpm or ddim."""

    @model_validator(mode="after")
    def _has_one_schedule(self) -> "DiffusionPolicyConfig":
        check_one_enabled(self, "ddpm", "ddim")
        return self

    @property
    def schedule(self) -> DDPMConfig:
        return self.ddpm if self.ddpm.enabled else self.ddim


@register_algo(DiffusionPolicyConfig)
class DiffusionPolicy(DenoisingPolicy):
    algo_config: DiffusionPolicyConfig

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.schedule = make_schedule(self.algo_config)
        self.sampler = make_sampler(self.algo_config, self.schedule)
        _try(self.sampler, self.algo_config.schedule.num_inference_timesteps)
        name = "ddpm" if self.algo_config.ddpm.enabled else "ddim"
        self.steps_key = f"{name}.num_inference_timesteps"

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        largest = float(values("actions").abs().max())
        if self.algo_config.schedule.clip_sample and largest > 1.001:
            keys = self.global_config.train.action_keys
            places = " and ".join(f"train.action_config.{key}.normalization" for key in keys)
            raise ValueError(
                f"actions reach {largest:.3g}, but this policy predicts none beyond [-1, 1] "
                f'(clip_sample); set {places} to "min_max"'
            )

    def corrupt(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = torch.randn(actions.shape, device=self.device)
        num_times = self.schedule.config.num_train_timesteps
        times = torch.randint(0, num_times, (len(actions),), device=self.device)
        target = {
            "epsilon": lambda: noise,
            "sample": lambda: actions,
            "v_prediction": lambda: self.schedule.get_velocity(actions, noise, times),
        }[self.schedule.config.prediction_type]()
        return self.schedule.add_noise(actions, noise, times), times, target

    def sample(self, obs: Obs, goal: Obs | None, generators: Generators) -> Tensor:
        net, sampler = self.nets["policy"], self.sampler
        seen, actions = self.begin(obs, generators)
        sampler.set_timesteps(self.algo_config.schedule.num_inference_timesteps)
        actions = actions * sampler.init_noise_sigma
        options = _randomness(sampler, generators)
        for time in sampler.timesteps:
            noisy = sampler.scale_model_input(actions, time)
            predicted = net(noisy, time.to(self.device).expand(len(seen)), seen)
            actions = sampler.step(predicted, time, actions, **options).prev_sample
        return actions


def make_schedule(config: DiffusionPolicyConfig) -> Any:
    """diffusers' DDPM or DDIM scheduler, which adds noise and removes it."""
    what = "diffusion_policy needs the package diffusers, which flow_matching does without"
    diffusers = needed("diffusers", "diffusion", what)
    name = "ddpm" if config.ddpm.enabled else "ddim"
    options = options_of(config.schedule, "num_inference_timesteps")
    kind = diffusers.DDPMScheduler if config.ddpm.enabled else diffusers.DDIMScheduler
    try:
        return kind(**options)
    except NotImplementedError:
        raise ValueError(
            f"algo.{name}.beta_schedule: diffusers has no schedule {options['beta_schedule']!r}; "
            'use "squaredcos_cap_v2", "linear" or "scaled_linear"'
        ) from None


def make_sampler(config: DiffusionPolicyConfig, schedule: Any) -> Any:
    """A scheduler that removes the noise which ``schedule`` adds."""
    name = config.scheduler
    if name is None:
        return schedule
    known = {
        kind.__name__: kind
        for kind in schedule.compatibles
        if "beta_schedule" in inspect.signature(kind).parameters
    }
    if name not in known:
        raise ValueError(
            f"algo.scheduler: diffusers has no {name!r} for this noise.{did_you_mean(name, known)} "
            f"It has {', '.join(sorted(known))}"
        )
    # As diffusers advises for noise of squared cosines, which begins without any signal.
    takes_limit = "lambda_min_clipped" in inspect.signature(known[name]).parameters
    limit = {"lambda_min_clipped": -5.1} if takes_limit else {}
    return known[name].from_config(schedule.config, **limit)


def _try(sampler: Any, num_steps: int) -> None:
    """``ValueError`` if it cannot remove noise in so many steps."""
    actions, options = torch.zeros(1, 1, 1), _randomness(sampler, [None])
    try:
        sampler.set_timesteps(num_steps)
        for time in sampler.timesteps:
            seen = sampler.scale_model_input(actions, time)
            actions = sampler.step(seen, time, actions, **options).prev_sample
    except (ValueError, IndexError, NotImplementedError) as error:
        raise ValueError(
            f"algo: diffusers' {type(sampler).__name__} cannot remove noise so ({error}); change "
            "num_inference_timesteps, num_train_timesteps, steps_offset or prediction_type of "
            "algo.ddpm or algo.ddim, or algo.scheduler"
        ) from None


def _randomness(sampler: Any, generators: Generators) -> dict[str, Any]:
    """A source of randomness per row for samplers that draw; rows without one do not count."""
    if generators is None or "generator" not in inspect.signature(sampler.step).parameters:
        return {}
    return {"generator": [g or torch.Generator().manual_seed(0) for g in generators]}


DiffusionPolicyUNet = DiffusionPolicy  # robomimic's name, which users' scripts import
