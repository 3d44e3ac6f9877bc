"""Scripted demonstrators, a policy that acts by one, and the goals that they reach."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import gymnasium
import numpy as np

from offrl.acting.episode import (
    ActionByEnv,
    GoalByEnv,
    Misfit,
    Obs,
    ObsByEnv,
    Policy,
    RewardByEnv,
    describe,
)
from offrl.envs.tasks import maybe_metaworlds
from offrl.registry import ENVS, EXPERTS, did_you_mean

HORIZON = 150  # steps of an episode, for experts without a horizon
LONGEST = 500  # steps until a demonstrator reaches a goal; Meta-World's episodes end there
F = TypeVar("F", bound=Callable[..., np.ndarray])


def demonstrator(task: str, horizon: int, styles: Sequence[str] = ()) -> Callable[[F], F]:
    """Decorate a function ``obs -> action``, to register it as the demonstrator of a task.

    horizon: the number of steps that it needs at most.
    styles: the ways to solve the task; it is called with ``(obs, style)``, ``None``: the shortest.
    """

    def register(expert: F) -> F:
        vars(expert).update(horizon=horizon, styles=tuple(styles))
        return EXPERTS.register(task)(expert)

    return register


def scripted_expert(env_args: Mapping[str, Any]) -> Callable[..., np.ndarray]:
    """Find the demonstrator for the task of ``env_args``; ``ValueError`` if there is none."""
    name = env_args["env_name"]
    if env_args.get("type") == "metaworld":
        return ENVS["metaworld"].expert_of(name)
    if name not in EXPERTS.names():
        known = ", ".join(EXPERTS.names())
        raise ValueError(
            f"{name} has no scripted expert; there are those of {known} and of Meta-World's tasks."
            + (maybe_metaworlds(name) or did_you_mean(name, EXPERTS.names()))
        )
    return EXPERTS[name]


class ExpertPolicy(Policy):
    """A policy that acts by a scripted expert, with Gaussian noise on the arm's motion.

    noise: the standard deviation, in the units of the action, or several, one for each episode in
        turn by its seed; the last component (the gripper) has no noise. Noise is seeded by episode.
    styles: styles of the expert, one for each episode in turn by its seed.
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
        self.horizon = getattr(expert, "horizon", HORIZON)  # steps of an episode at most
        self.levels = [noise] if isinstance(noise, (int, float)) else list(noise)
        self.styles = list(styles)
        self._episodes: dict[int, tuple[list[str], float, np.random.Generator]] = {}

    def attributes(self, seed: int) -> dict[str, Any]:
        """Return an episode's seed and style, if any; all pairs of style and noise occur."""
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


class DemonstratedGoals(gymnasium.Env):
    """Adds ``get_goal`` to an environment, by the demonstrator (``offrl.envs.experts``) of its
    task. A subclass sets ``_given`` in its constructor, and ``serialize`` names the task.

    The demonstrator acts in a second environment, so that the episode itself is not disturbed.
    """

    _given: tuple[str, dict[str, Any]]  # env_name and env_kwargs
    _seed: int | None = None  # the seed of the present episode
    _second: Any = None  # another environment like this one

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def get_goal(self) -> Obs:
        """Return all observations in the state in which the task's demonstrator has just solved the
        task from this episode's initial state; the same seed gives the same bits. Raises ``Misfit``
        without a demonstrator or a seed, or if the demonstrator fails."""
        task = self._given[0]
        try:
            expert = scripted_expert(self.get_wrapper_attr("serialize")())
        except ValueError as error:
            raise Misfit(
                f"{error} There are no goals to give: register one (offrl.registry.EXPERTS), or "
                "define get_goal in an environment of your own"
            ) from None
        if self._seed is None:
            raise Misfit(
                f"{task}: the goal is what its demonstrator reaches from the seed of the episode, "
                "and this one has none; begin it with reset(seed=...)"
            )
        if self._second is None:
            make: Any = type(self)
            self._second = make(*self._given)
        env, policy = self._second, ExpertPolicy(expert)
        try:
            obs, _ = env.reset(seed=self._seed)
            policy.start_episode(seed=self._seed)
            for _ in range(LONGEST):
                obs, _, terminated, truncated, _ = env.step(policy(obs))
                if env.is_success()["task"]:
                    return obs
                if terminated or truncated:
                    break
        except Exception as error:
            raise Misfit(f"{task}: its demonstrator cannot act here: {describe(error)}") from error
        raise Misfit(
            f"{task}: its demonstrator fails with seed {self._seed}, so there is no goal to "
            "give; take another seed, or define get_goal in an environment of your own"
        )

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None
        super().close()
