"""Diffusion Policy (Chi et al., 2023, arXiv:2303.04137): denoise a chunk of actions."""

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from offrl.algos.base import Generators, Obs, register_algo
from offrl.algos.shared.denoising import (
    DenoisingConfig,
    DenoisingPolicy,
    denoise,
    make_noise_schedule,
    make_sampler,
)
from offrl.config import Count, EMAConfig, Section
from offrl.config.section import check_one_enabled
from offrl.lazy import Tensor, torch


class DDPMConfig(Section):
    """Denoising Diffusion Probabilistic Models (Ho et al., 2020, arXiv:2006.11239)."""

    enabled: bool = True
    """Add and remove noise as DDPM does."""
    num_train_timesteps: Count = 100
    """Number of steps from actions to noise."""
    num_inference_timesteps: Count = 100
    """Number of steps from noise to actions while acting."""
    beta_schedule: str = "squaredcos_cap_v2"
    """Growth of the noise, by the name that diffusers has for it."""
    clip_sample: bool = True
    """Clip predicted actions to [-1, 1] in each denoising step."""
    prediction_type: Literal["epsilon", "sample", "v_prediction"] = "epsilon"
    """Target of the network: "epsilon", the noise; "sample", the actions; "v_prediction", a
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
    def kind(self) -> Literal["ddpm", "ddim"]:
        return "ddpm" if self.ddpm.enabled else "ddim"

    @property
    def schedule(self) -> DDPMConfig:
        return self[self.kind]


@register_algo(DiffusionPolicyConfig)
class DiffusionPolicy(DenoisingPolicy):
    """A denoiser ``policy`` of chunks, by the schedulers of diffusers."""

    algo_config: DiffusionPolicyConfig

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.schedule = make_noise_schedule(self.algo_config)
        self.sampler = make_sampler(self.algo_config, self.schedule)
        self.schedule.alphas_cumprod = self.schedule.alphas_cumprod.to(self.device)
        self.steps_key = f"{self.algo_config.kind}.num_inference_timesteps"

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
        seen, noise = self.begin(obs, generators)

        def predict(noisy: Tensor, time: Tensor) -> Tensor:
            times = torch.full((len(seen),), time.item(), device=self.device)
            return self.nets["policy"](noisy, times, seen)

        num_steps = self.algo_config.schedule.num_inference_timesteps
        return denoise(self.sampler, noise, num_steps, predict, generators)


DiffusionPolicyUNet = DiffusionPolicy  # robomimic's name, which users' scripts import
