"""One of the four roles of reinforcement learning, as a user may write it: a ``Model``; and the
networks of offrl's own algorithms in that role."""

import warnings
from typing import Any

from torch import Tensor, nn

from offrl.algos.shared.algo import Obs
from offrl.tree import map_leaves


class Model(nn.Module):
    """Networks that say what states and actions are worth, and what to do."""

    def value(self, x: Any, a: Tensor | None = None) -> Tensor:
        """Estimate the value of observations ``x``, or of taking the actions ``a`` there: ``[B]``
        or ``[B, 1]``. Without ``a``, a model of discrete actions may give all values, ``[B, A]``.
        """
        raise NotImplementedError(f"{type(self).__name__} estimates no values")

    def action(self, x: Any) -> Tensor:
        """Choose actions ``[B]`` or ``[B, A]`` for observations ``x``, the best that it knows."""
        raise NotImplementedError(f"{type(self).__name__} chooses no actions")


class Networks(Model):
    """The networks of one of offrl's algorithms as a ``Model``."""

    def __init__(self, algo: Any):
        super().__init__()
        self.nets = algo.nets
        self._algo = algo

    def value(self, x: Obs | Tensor, a: Tensor | None = None) -> Tensor:
        algo = self._algo
        if not hasattr(algo, "values_actions"):
            return super().value(x, a)
        obs, is_one = self._batch(x)
        if a is not None and algo.values_actions():
            values = algo.get_state_action_value(obs, self._learned(a[None] if is_one else a))
        else:
            if a is not None:
                name = algo.global_config.algo_name
                warnings.warn(f"value: {name} values states; a is not used", stacklevel=2)
            values = algo.get_state_value(obs)
        return values[0] if is_one else values

    def action(self, x: Obs | Tensor) -> Tensor:
        obs, is_one = self._batch(x)
        actions = self._algo.predict(obs)
        return actions[0] if is_one else actions

    def _batch(self, x: Obs | Tensor) -> tuple[Obs, bool]:
        """Return observations ``{key: [B, ...]}``, and whether they were of one environment."""
        obs, groups = self._algo.named(x), self._algo.obs_spec.groups["obs"]
        frames = self._algo.global_config.train.frame_stack > 1
        is_one = all(obs[key].ndim == len(spec.shape) + frames for key, spec in groups.items())
        return map_leaves(lambda value: value[None], obs) if is_one else obs, is_one

    def _learned(self, a: Tensor) -> Tensor:
        """Turn the environment's actions (discrete: maybe one-hot) into those that networks see."""
        algo = self._algo
        if not algo.is_discrete or a.ndim == 1:
            return algo.learned_action(a)
        is_index = a.shape[-1] == 1 and algo.ac_dim > 1
        return algo.learned_action(a[..., 0]) if is_index else algo.to_device(a)
