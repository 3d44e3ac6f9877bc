"""The registration of demonstrators, and the policy that acts as one does."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from offrl.acting.episode import ActionByEnv, GoalByEnv, ObsByEnv, Policy, RewardByEnv
from offrl.registry import EXPERTS

HORIZON = 150  # steps of an episode, where an expert does not say how many suffice
F = TypeVar("F", bound=Callable[..., np.ndarray])


def demonstrator(task: str, horizon: int, styles: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorate a function ``obs -> action``, to register it as the demonstrator of a task.

    horizon: the steps that suffice for its episodes.
    styles: the ways in which it can solve the task; it is then called with ``(obs, style)``, where
        ``None`` stands for the shortest way.
    """

    def register(expert: F) -> F:
        vars(expert).update(horizon=horizon, styles=tuple(styles))
        return EXPERTS.register(task)(expert)

    return register


class ExpertPolicy(Policy):
    """An expert as an evaluation policy, with Gaussian noise on the arm's motion.

    noise: the standard deviation, in the units of the action, or several of which episodes take one
        each, in turn by their seeds; the last component (the gripper) stays clean. Each episode's
        noise comes from its seed.
    styles: of those that the expert has; episodes take one each, in turn as well.
    """

    def __init__(
        self,
        expert: Callable[..., np.ndarray],
        noise: float | Sequence[float] = 0.0,
        styles: Sequence[str] = (),
    ):
        known = getattr(expert, "styles", ())
        if strange := [style for style in styles if style not in known]:
            has = f"has {', '.join(known)}" if known else "solves it in one way"
            raise ValueError(f"styles: no {', '.join(strange)}; the task's demonstrator {has}")
        self.expert = expert
        self.horizon = getattr(expert, "horizon", HORIZON)  # steps that suffice for an episode
        self.levels = [noise] if isinstance(noise, (int, float)) else list(noise)
        self.styles = list(styles)
        self._episodes: dict[int, tuple[list[str], float, np.random.Generator]] = {}

    def attributes(self, seed: int) -> dict[str, Any]:
        """Return what is noted of an episode: its seed and, if there are several, its style, of
        which each is combined with each level of noise."""
        turn = seed // len(self.levels)
        style = {"style": self.styles[turn % len(self.styles)]} if self.styles else {}
        return {"seed": seed, **style}

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        level = self.levels[(seed or 0) % len(self.levels)]
        style = self.attributes(seed or 0).get("style")
        self._episodes[env] = [style] if style else [], level, np.random.default_rng(seed)

    def act(
        self, obs_by_env: ObsByEnv, goal_by_env: GoalByEnv = None, reward_by_env: RewardByEnv = None
    ) -> ActionByEnv:
        actions: ActionByEnv = {}
        for env, obs in obs_by_env.items():
            style, level, generator = self._episodes[env]
            action = np.array(self.expert(obs, *style), dtype=float)
            action[:-1] += level * generator.standard_normal(len(action) - 1)
            actions[env] = np.clip(action, -1.0, 1.0).astype(np.float32)
        return actions
