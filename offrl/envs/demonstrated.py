"""Goals of a simulator's episodes: where the task's demonstrator gets from the same seed."""

from typing import Any

import gymnasium

from offrl.acting.episode import Misfit, Obs, describe
from offrl.envs.experts import ExpertPolicy, scripted_expert

LONGEST = 500  # steps of a demonstrator; Meta-World's episodes end there


class DemonstratedGoals(gymnasium.Env):
    """Gives an environment ``get_goal``. Its constructor notes what it was given, and its
    ``serialize`` says which task's demonstrator (``offrl.envs.experts``) is asked.

    The demonstrator acts in a second environment, made at the first goal, so that the episode
    goes on as if nobody had asked.
    """

    _given: tuple[str, dict[str, Any]]  # env_name and env_kwargs
    _seed: int | None = None  # that the present episode began with
    _second: Any = None  # another environment like this one

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed = seed
        return super().reset(seed=seed, options=options)

    def get_goal(self) -> Obs:
        """Return all observations in the state in which the task's demonstrator has just solved
        it, from the initial state of this episode. The same seed gives the same goal to the last
        bit.

        Raises ``Misfit`` for a task without a demonstrator, an episode without a seed, and a
        demonstrator that fails.
        """
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
            raise Misfit(
                f"{task}: its demonstrator cannot act in this environment: {describe(error)}"
            ) from error
        raise Misfit(
            f"{task}: its demonstrator fails with seed {self._seed}, so there is no goal to "
            "give; take another seed, or define get_goal in an environment of your own"
        )

    def close(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None
        super().close()
