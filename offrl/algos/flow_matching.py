"""Flow Matching (Lipman et al., 2023, arXiv:2210.02747) along straight lines (Liu et al., 2023,
arXiv:2209.03003): learn the velocity from noise to a chunk of actions, and follow it."""

from offrl.algos.base import Generators, Obs, register_algo
from offrl.algos.shared.denoising import DenoisingConfig, DenoisingPolicy
from offrl.config import Count
from offrl.lazy import Tensor, torch

TIMES = 100  # networks see times in [0, 100), as in diffusion


class FlowMatchingConfig(DenoisingConfig):
    ALGO_NAME = "flow_matching"

    num_inference_steps: Count = 4
    """Number of Euler steps from noise to actions while acting."""


@register_algo(FlowMatchingConfig)
class FlowMatching(DenoisingPolicy):
    algo_config: FlowMatchingConfig
    steps_key = "num_inference_steps"

    def corrupt(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        noise = torch.randn(actions.shape, device=self.device)
        t = torch.rand(len(actions), 1, 1, device=self.device)
        return torch.lerp(noise, actions, t), TIMES * t.flatten(), actions - noise

    def sample(self, obs: Obs, goal: Obs | None, generators: Generators) -> Tensor:
        net, num_steps = self.nets["policy"], self.algo_config.num_inference_steps
        seen, actions = self.begin(obs, generators)
        for t in torch.arange(num_steps, device=self.device) / num_steps:
            velocity = net(actions, (TIMES * t).expand(len(seen)), seen)
            actions = actions + velocity / num_steps
        return actions
