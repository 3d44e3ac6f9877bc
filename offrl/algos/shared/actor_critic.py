"""What algorithms share that have critics and an actor."""

from typing import Any

from torch import Tensor

from offrl import models
from offrl.algos.base import Generators, Obs, PolicyAlgo
from offrl.algos.shared.td import TDLearner
from offrl.specs import ObsSpec

MIN_STD = 0.007  # robomimic's, of the Gaussians of actors that learn by values


class ActorCritic(TDLearner, PolicyAlgo):
    """Critics ``critic`` ``Q(s, a, g)`` and an ``actor`` ``pi(a | s, g)``."""

    _low_noise_eval = True

    def add_stochastic_actor(self, spec: ObsSpec | None = None) -> None:
        """Add the network ``actor`` that ``algo.actor.net`` describes: a Gaussian, its tanh, or a
        mixture of Gaussians. It sees what the algorithm sees, or what ``spec`` says."""
        net = self.algo_config.actor.net
        options = net.common.to_dict() | net[net.type].to_dict()
        self._low_noise_eval = options.pop("low_noise_eval")
        if net.type == "gaussian":
            options["min_std"] = MIN_STD
        else:
            del options["use_tanh"]
        self.nets["actor"] = models.mlp_actor(
            spec or self.obs_spec,
            self.ac_dim,
            self.algo_config.actor.layer_dims,
            net.type,
            self.num_frames,
            **options,
        )

    def act(
        self, obs: Obs, goal: Obs | None = None, state: Any = None, generators: Generators = None
    ) -> tuple[Tensor, Any]:
        pi, state = self.action_distribution(obs, goal, state)
        pi = pi.at(-1)
        if self._low_noise_eval and not self.nets.training:
            pi = pi.low_noise()
        return pi.sample(generators), state

    def action_distribution(
        self, obs: Obs, goal: Obs | None = None, state: Any = None
    ) -> tuple[Any, Any]:
        return self.nets["actor"](self.prepare_obs(obs), self.prepare_obs(goal, "goal"), state)

    def best_guess(self, obs: Any, goal: Any) -> Tensor:
        """The actor's most likely action ``[B, 1, A]``, for observations as networks see them."""
        return self.nets["actor"](obs, goal)[0].mode()
