"""TD3 (Fujimoto et al., 2018, arXiv:1802.09477): a deterministic actor maximises a critic, with
three remedies for values that are too high: the minimum of two critics, an actor that is updated
less often than they are, and noise on the action of a target. Its defaults are those of the
authors' later code (two layers of 256, a rate of 3e-4), as SAC's are, so that the two compare.
"""

from offrl import models
from offrl.algos.base import Batch, Generators, Info, register_algo
from offrl.algos.shared.actor_critic import ActorCritic
from offrl.config import Count, NonNegative, Section
from offrl.config.algo import StagedTDConfig, WeightedCriticConfig, learning_rates, while_acting
from offrl.lazy import Tensor, torch


class TD3ActorConfig(Section):
    update_freq: Count = 2
    """Number of critic updates for each update of the actor and of the targets."""
    noise_std: NonNegative = 0.2
    """Standard deviation of the noise on the next action in a target."""
    noise_clip: NonNegative = 0.5
    """Largest magnitude of that noise."""
    exploration_std: NonNegative = 0.1
    """Standard deviation of the noise on actions that are taken to learn from (train.num_steps)."""
    layer_dims: list[Count] = [256, 256]
    """Sizes of the hidden layers of the actor."""


class TD3Config(StagedTDConfig):
    ALGO_NAME = "td3"
    DEFAULTS = while_acting({"random_steps": 10_000}, batch_size=256)
    OPTIMIZERS = learning_rates(critic=3e-4, actor=3e-4, staged=True)
    critic: WeightedCriticConfig = WeightedCriticConfig(layer_dims=[256, 256])
    actor: TD3ActorConfig = TD3ActorConfig()
    """The policy."""


@register_algo(TD3Config)
class TD3(ActorCritic):
    """Two critics, a deterministic ``actor``, and target networks of all."""

    algo_config: TD3Config
    LOGS_GRADIENTS = False

    def _create_networks(self) -> None:
        self.add_critics()
        parts = self.obs_spec, self.ac_dim, self.algo_config.actor.layer_dims
        self.nets["actor"] = models.mlp_actor(*parts, num_frames=self.num_frames)
        self.add_target("actor")

    def q_target(self, batch: Batch) -> Tensor:
        """Compute ``r + gamma min Q'(s', pi'(s') + noise)`` (target policy smoothing)."""
        std, limit = self.algo_config.actor.noise_std, self.algo_config.actor.noise_clip
        next_actions = self.nets["actor_target"](batch["next_obs"])[0].mode()
        if std:
            noise = (torch.randn_like(next_actions) * std).clamp(-limit, limit)
            next_actions = (next_actions + noise).clamp(-1.0, 1.0)
        return batch["rewards"] + batch["discounts"] * self.next_value(batch, next_actions)

    def next_value(self, batch: Batch, next_actions: Tensor) -> Tensor:
        return self.pessimistic(self.nets["critic_target"](batch["next_obs"], next_actions))

    def pi_loss(self, batch: Batch) -> Tensor:
        """Compute ``-Q(s, pi(s))``."""
        actions = self.nets["actor"](batch["obs"])[0].mode()
        return -self.nets["critic"].first(batch["obs"], actions).mean()

    def update(self, batch: Batch) -> Info:
        with torch.no_grad():
            target = self.q_target(batch)
        q_losses, _ = self.critic_losses(batch, target)
        info = self.optimize_critics(batch, q_losses) | {"Critic/Q_Targets": target.mean()}
        self.num_updates += self.trains("critic")

        is_due = self.num_updates % self.algo_config.actor.update_freq == 0
        trains_actor = is_due and self.trains("actor")
        if trains_actor or self.validates:
            info["Actor/Loss"] = self.pi_loss(batch)
        if trains_actor:
            info["Actor/Grad_Norms"] = self.optimize("actor", info["Actor/Loss"])
            self.update_targets()
        return info

    def explored(self, action: Tensor, generators: Generators = None) -> Tensor:
        noise = models.random_rows("randn", action, generators)
        return (action + self.algo_config.actor.exploration_std * noise).clamp(-1.0, 1.0)
