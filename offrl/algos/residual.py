"""Residual reinforcement learning (Silver et al., 2018, arXiv:1812.06298; Johannink et al., 2019,
arXiv:1812.03201): a correction of a policy that stays as it is.

The action is ``clip(base(s) + scale delta(s))``, of a frozen ``base`` and a ``delta`` that soft
actor-critic learns. Critics see the sum. The base is the policy of the checkpoint that the training
starts from (``experiment.ckpt_path``), and is in the checkpoints of the training itself.

The least of five critics with layer normalisation, and targets without the entropy, keep values
from running away in a replay that is full of the base's failures; with two plain critics a good
base became worse in the end.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from offrl import models
from offrl.algos.base import Obs, PolicyAlgo, register_algo
from offrl.algos.factory import algo_factory
from offrl.algos.sac import SAC, SACConfig
from offrl.algos.sac_n import SACCriticConfig
from offrl.algos.shared.chunks import ChunkPolicy
from offrl.algos.shared.weights import to_act, weights_of
from offrl.config import Config, stored_config, without_pretrained
from offrl.config.algo import EnsembleConfig, while_acting
from offrl.lazy import Tensor, torch
from offrl.tree import map_leaves

BASE = "base_actions"  # key of the base's actions among the observations
DESCRIBING = ("algo_name", "config", "shape_metadata")  # the base, in its checkpoint
NOT_OF_A_BASE = ("optimizers", "lr_schedulers")


class ResidualConfig(SACConfig):
    ALGO_NAME = "residual"
    DEFAULTS = while_acting({"warmup_steps": 1000, "replay": {"demo_share": 0.25}}, batch_size=256)

    critic: SACCriticConfig = SACCriticConfig(
        layer_dims=[256, 256], ensemble=EnsembleConfig(n=5), deterministic_backup=True
    )

    scale: float = Field(0.3, gt=0, le=2)
    """Largest correction of a number of the base policy's action, which is between -1 and 1."""


@register_algo(ResidualConfig)
class Residual(SAC):
    """``nets`` are those of the correction; ``base`` is an algorithm of its own."""

    algo_config: ResidualConfig
    LAYER_NORM = True

    base: PolicyAlgo | None = None

    def _create_networks(self) -> None:
        if self.algo_config.actor.bc_start_steps:
            raise ValueError(
                "algo.actor.bc_start_steps: the base is cloned already, and its correction clones "
                "nothing; set it to 0"
            )
        super()._create_networks()

    @classmethod
    def settings_from(cls, algo_name: str, stored: Config) -> dict[str, Any]:
        return {} if stored.algo_name != algo_name else super().settings_from(algo_name, stored)

    def start_from(self, content: Mapping[str, Any]) -> None:
        """Load a checkpoint's policy as the base, or all weights if it is residual itself."""
        model = {k: x for k, x in content["model"].items() if k not in NOT_OF_A_BASE}
        if content["algo_name"] == self.global_config.algo_name:
            self.deserialize({**weights_of(model), "base": model["base"]})
        else:
            self._set_base({**{key: content[key] for key in DESCRIBING}, "model": model})

    def _set_base(self, content: Mapping[str, Any]) -> None:
        """Make the base from ``content``, with the keys ``DESCRIBING`` and ``model``."""
        config = stored_config(content["algo_name"], content["config"])
        shapes, name = content["shape_metadata"], config.algo_name
        base: Any = algo_factory(
            name,
            without_pretrained(config),
            obs_key_shapes=shapes["all_shapes"],
            ac_dim=shapes["ac_dim"],
            device=self.device,
        )
        base.deserialize(to_act(content["model"]))
        base.set_eval()
        unseen = [key for key in base.obs_spec.keys("obs") if key not in self.obs_spec.keys("obs")]
        if unseen:
            raise ValueError(
                f"the base policy, {name}, sees {unseen[0]!r}, and this one does not; add it to "
                "observation.modalities.obs"
            )
        is_single = isinstance(base, PolicyAlgo) and not isinstance(base, ChunkPolicy)
        if not is_single or base.obs_spec.keys("goal") or base.is_discrete:
            raise ValueError(
                f"{name} cannot be a base policy: that sees no goals, and predicts one action, a "
                "real-valued one"
            )
        frames = base.num_frames
        if base.ac_dim != self.ac_dim or frames > self.num_frames:
            raise ValueError(
                f"the base policy, {name}, has actions of {base.ac_dim} numbers and a frame_stack "
                f"of {frames}, and this one {self.ac_dim} and {self.num_frames} (train.frame_stack)"
            )
        self.base, self._content = base, content

    def prepare_obs(self, obs: Obs | None, group: str = "obs") -> dict[str, Tensor] | None:
        """Add the action of the base, ``BASE`` ``[B, 1, A]``, to the observations."""
        prepared = super().prepare_obs(obs, group)
        if prepared is not None and group == "obs" and self.base is not None:
            prepared[BASE] = self._base_actions(self.base, obs or {})
        return prepared

    def _base_actions(self, base: PolicyAlgo, obs: Obs) -> Tensor:
        """Return the base's likeliest action, in the units of this policy."""
        with torch.no_grad():
            seen = map_leaves(lambda x: x[:, -base.num_frames :], obs)
            pi, state = base.action_distribution(seen)
            if state is not None:
                raise ValueError(
                    f"residual: {base.global_config.algo_name} remembers earlier steps; the base "
                    "must be a policy without memory (an MLP)"
                )
            raw = base.action_normalizer.unnormalize_vector(pi.mode()[:, -1:])
            return self.action_normalizer.normalize_vector(raw)

    def policy(self, obs: Any, state: Any = None) -> tuple[Any, Any]:
        if BASE not in obs:
            raise ValueError(
                f"{self.global_config.algo_name}: there is no policy to correct; name its "
                "checkpoint (experiment.ckpt_path)"
            )
        correction, state = super().policy(obs, state)
        base, scale = obs[BASE], torch.full_like(obs[BASE], self.algo_config.scale)
        return models.Corrected(correction.mean, correction.std, base, scale), state

    def serialize(self) -> dict[str, Any]:
        return super().serialize() | ({} if self.base is None else {"base": self._content})

    def deserialize(self, state: Mapping[str, Any], load_optimizers: bool = True) -> None:
        super().deserialize(state, load_optimizers)
        if "base" in state:
            self._set_base(state["base"])
