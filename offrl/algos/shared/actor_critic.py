"""The base of algorithms that have critics and an actor."""

from collections.abc import Mapping
from typing import Any

from offrl import models
from offrl.algos.base import Generators, Obs, PolicyAlgo, Seen
from offrl.algos.shared.td import TDLearner
from offrl.config import Config, Positive, Section
from offrl.lazy import Tensor
from offrl.specs import ObsSpec, with_goal

MIN_STD = 0.007  # robomimic's, of the Gaussians of actors that learn by values
CLONING = "bc"  # algorithm whose policies actors may start from


class AdvantageConfig(Section):
    """Weights of the data's actions by their advantage, where an actor clones them."""

    clip_adv_value: float | None = None
    """Largest advantage; larger ones are set to it. null: no limit."""
    beta: Positive = 1.0
    """Temperature: weights are exp(advantage / beta)."""
    use_final_clip: bool = True
    """Limit these weights to 100."""

    def weights(self, advantage: Tensor) -> Tensor:
        """Compute the weights of actions of these advantages."""
        if self.clip_adv_value is not None:
            advantage = advantage.clamp(max=self.clip_adv_value)
        weight = (advantage / self.beta).exp()
        return weight.clamp(max=100.0) if self.use_final_clip else weight


class ActorCritic(TDLearner, PolicyAlgo):
    """Critics ``critic`` ``Q(s, a, g)`` and an ``actor`` ``pi(a | s, g)``."""

    algo_config: Any  # of a subclass, with a section ``actor``

    _low_noise_eval = True

    def add_stochastic_actor(self, spec: ObsSpec | None = None) -> None:
        """Add the network ``actor`` that ``algo.actor.net`` describes: a Gaussian, a mixture of
        Gaussians, or the tanh of either. It sees what the algorithm sees, or what ``spec`` says."""
        net = self.algo_config.actor.net
        options = net.common.to_dict() | net[net.type].to_dict()
        self._low_noise_eval = options.pop("low_noise_eval")
        if net.type == "gaussian":
            options["min_std"] = MIN_STD
        self.nets["actor"] = models.mlp_actor(
            spec or self.obs_spec,
            self.ac_dim,
            self.algo_config.actor.layer_dims,
            net.type,
            self.num_frames,
            **options,
        )

    def act(self, seen: Seen) -> tuple[Tensor, Any]:
        pi, state = self.action_distribution(seen.obs, seen.goal, seen.state)
        pi = pi.at(-1)
        if self._low_noise_eval and not self.explores:
            pi = pi.low_noise()
        return pi.sample(seen.generators), state

    def explored(self, action: Tensor, generators: Generators = None) -> Tensor:
        """Stay within [-1, 1], as the data's actions do."""
        return action.clamp(-1.0, 1.0)

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        return self.policy(self.prepare(obs, goal), state)

    def policy(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        """Return the distribution of actions for prepared observations, and the state."""
        return self.nets["actor"](obs, None, state)

    def best_guess(self, obs: Any, goal: Any = None) -> Tensor:
        """Return the actor's likeliest action ``[B, 1, A]`` for prepared observations."""
        return self.policy(with_goal(obs, goal))[0].mode()

    # -- starting from a cloned policy -----------------------------------------------------------

    @classmethod
    def settings_from(cls, algo_name: str, stored: Config) -> dict[str, Any]:
        if stored.algo_name != CLONING or algo_name == CLONING:
            return super().settings_from(algo_name, stored)
        return {"algo": {"actor": {"layer_dims": stored.algo["actor_layer_dims"]}}}

    def start_from(self, content: Mapping[str, Any]) -> None:
        """Load the same algorithm's weights, or a cloned policy's into the actor only."""
        if content["algo_name"] != CLONING:
            return super().start_from(content)
        cloned = content["model"]["nets"]
        own = self.nets.state_dict()
        weights = {name.replace("policy.", "actor.", 1): x for name, x in cloned.items()}
        if "actor.head.mean.weight" in own:  # the mean of a Gaussian, where there was no noise
            weights = {k.replace("head.action.", "head.mean."): x for k, x in weights.items()}
        kept = {k: x for k, x in own.items() if not k.startswith("actor.") or ".scale." in k}
        try:
            self.deserialize(kept | weights)
        except ValueError as error:
            raise ValueError(
                f"a policy of {CLONING!r} that the actor of {self.global_config.algo_name} cannot "
                f"start from: {error}; algo.actor must describe the same network"
            ) from None
        if "actor" in self._targets:
            self.nets["actor_target"].load_state_dict(self.nets["actor"].state_dict())
