"""Running normalisation by means and deviations of observations and rewards so far."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.assembly.acting import ActingExperiment
from offrl.tree import as_arrays, as_tensors

LARGEST = 10.0  # standard deviations, of rewards
LEAST_VARIANCE = 1e-8


class Moments:
    """Mean and variance of all rows ``[N, ...]`` so far, joined in parts (Chan et al., 1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Any = 0.0
        self.squares: Any = 0.0  # sum of squared differences from the mean

    @classmethod
    def of(cls, parts: Iterable[np.ndarray]) -> "Moments":
        """Compute the moments of the rows of all parts."""
        moments = cls()
        moments.add(np.concatenate([*parts]))
        return moments

    def add(self, rows: np.ndarray) -> None:
        rows = rows.astype(np.float64)
        mean = rows.mean(axis=0)
        self.join(len(rows), mean, np.square(rows - mean).sum(axis=0))

    def join(self, count: int, mean: Any, squares: Any) -> None:
        """Add rows with these moments."""
        total, apart = self.count + count, mean - self.mean
        self.squares = self.squares + squares + apart**2 * self.count * count / total
        self.mean = self.mean + apart * count / total
        self.count = total

    @property
    def deviation(self) -> Any:
        return np.sqrt(self.squares / max(1, self.count) + LEAST_VARIANCE)

    def state(self) -> dict[str, Any]:
        return as_tensors(vars(self))

    def restore(self, state: Mapping[str, Any]) -> None:
        vars(self).update(as_arrays(state))


class RunningStatistics:
    """Statistics for the normalisation in ``train.online``, which also gives the rewards to learn
    from. Statistics of observations change only between rounds, so that a policy sees the same
    while it acts and while it learns. Rewards are divided by the deviation of their discounted
    sums, including the present round's. All continue a checkpoint's of the experiment.
    """

    def __init__(self, experiment: ActingExperiment):
        self._config = experiment.config.train.online
        self._discount = getattr(experiment.config.algo, "discount", 1.0)
        shown = experiment.alg.obs_spec.groups["obs"] if self._config.normalize_obs else {}
        self._obs = {key: Moments() for key, obs in shown.items() if not obs.is_image}
        self._returns = Moments()
        self._sums = np.zeros(experiment.envs.num_envs)  # discounted returns of running episodes
        self._seen: list[Mapping[str, np.ndarray]] = []
        self._received: list[np.ndarray] = []
        self._is_behind = False  # other processes' data is not in use yet
        self.go_on_from(experiment.moments)

    def see(self, obs: Mapping[str, np.ndarray], stepped: Any) -> None:
        """Add a step from ``obs`` in all environments."""
        if self._obs:
            self._seen.append(obs)
        if self._config.normalize_rewards:
            rewards = np.sign(stepped.rewards) if self._config.clip_rewards else stepped.rewards
            self._sums = self._discount * self._sums + rewards
            self._received.append(self._sums[stepped.is_step])
            over = stepped.terminated | stepped.truncated | ~stepped.is_step
            self._sums = np.where(over, 0.0, self._sums)

    def take(self) -> dict[str, Any]:
        """Return the moments of this round's observations and rewards, for ``join`` elsewhere."""
        seen, self._seen = self._seen, []
        moments = {key: Moments.of(obs[key] for obs in seen) for key in self._obs if seen}
        return {
            "obs": {key: vars(own) for key, own in moments.items()},
            "returns": vars(Moments.of(self._received)) if self._received else None,
        }

    def join(self, taken: Mapping[str, Any]) -> None:
        """Add moments of other processes."""
        for key, moments in taken["obs"].items():
            self._obs[key].join(**moments)
            self._is_behind = True
        if taken["returns"] is not None:
            self._returns.join(**taken["returns"])

    def end_round(self) -> None:
        """Add the rewards of a round, before learning from it."""
        if self._received:
            self._returns.add(np.concatenate(self._received))
        self._received = []

    def update(self, alg: Any) -> None:
        """Normalise the policy's observations by all statistics so far, before the next round."""
        if self._seen or self._is_behind:
            stats = {}
            for key, moments in self._obs.items():
                if self._seen:
                    moments.add(np.concatenate([obs[key] for obs in self._seen]))
                stats[key] = {"offset": moments.mean[None], "scale": moments.deviation[None]}
            alg.set_statistics(stats, alg.action_normalizer.stats)
        self._seen, self._is_behind = [], False

    @property
    def reward_stats(self) -> dict[str, Any]:
        """Return the divisor of rewards, for checkpoints."""
        if not self._config.normalize_rewards:
            return {}
        return {"scale": torch.as_tensor([[self._returns.deviation]], dtype=torch.float32)}

    def rewards(self, rewards: Tensor) -> Tensor:
        """Return the normalised rewards to learn from."""
        if self._config.clip_rewards:
            rewards = rewards.sign()
        if self._config.normalize_rewards and self._returns.count:
            rewards = (rewards / float(self._returns.deviation)).clamp(-LARGEST, LARGEST)
        return rewards

    def moments(self) -> dict[str, Any]:
        """Return the moments for another training that starts from the checkpoint."""
        kept: dict[str, Any] = {}
        if self._obs:
            kept["obs"] = {key: moments.state() for key, moments in self._obs.items()}
        if self._config.normalize_rewards:
            kept["returns"] = self._returns.state()
        return kept

    def go_on_from(self, kept: Mapping[str, Any]) -> None:
        """Start from what ``moments`` returned."""
        for key, moments in self._obs.items():
            if key in kept.get("obs", {}):
                moments.restore(kept["obs"][key])
        if "returns" in kept:
            self._returns.restore(kept["returns"])

    def state(self) -> dict[str, Any]:
        seen = [{key: torch.from_numpy(obs[key]) for key in self._obs} for obs in self._seen]
        return self.moments() | {"sums": torch.from_numpy(self._sums.copy()), "seen": seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.go_on_from(state)
        self._sums = state["sums"].numpy().copy()
        self._seen = [{key: x.numpy() for key, x in obs.items()} for obs in state["seen"]]
