"""Policies at environments: numpy in, numpy out, and what an evaluation found."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from offrl import tree
from offrl.specs import LANGUAGE

# Episode seeds come in disjoint blocks, so that no initial state of a demonstration is a test
# case, and no test case was used to choose a checkpoint.
TEST_SEEDS = 0
SELECTION_SEEDS = 1_000_000
COLLECTION_SEEDS = 2_000_000

EVALUATION_BATCH = 4  # small: every call pays for all rows


class RolloutPolicy:
    """A trained policy at work: raw observations to raw actions, as numpy arrays.

    ``policy = RolloutPolicy(algo); policy.start_episode(); action = policy(obs)`` serves one
    environment; ``act`` serves many, each with a state, a stack of frames and a source of
    randomness of its own. The network sees batches of ``batch_size`` rows always, and an episode
    has its row by its seed: the last bits of a result depend on the batch's shape and on the row,
    but not on what is in the other rows.

    instruction: the embedding of what to do, for policies that were trained with one, instead of
        what the environment says; ``None`` for the environment's.
    """

    def __init__(self, algo: Any, batch_size: int = 1, instruction: np.ndarray | None = None):
        self.policy = algo
        self.batch_size = batch_size
        self.instruction = instruction
        self._rows: dict[int, int] = {}
        self._frames: dict[int, deque] = {}
        self._states: dict[int, Any] = {}
        self._actions: dict[int, torch.Tensor] = {}  # the last ones
        self._generators: dict[int, torch.Generator | None] = {}

    @property
    def needs_goal(self) -> bool:
        return bool(self.policy.obs_spec.keys("goal"))

    @property
    def counts_rewards(self) -> bool:
        """Whether it must be told the reward of each action."""
        return self.policy.COUNTS_REWARDS

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        """Forget the last episode of ``env``. With a seed, the episode's sampling depends on it
        alone; without, on torch's global random state."""
        self.policy.set_eval()
        self._rows[env] = (env if seed is None else seed) % self.batch_size
        self._frames[env] = deque(maxlen=self.policy.global_config.train.frame_stack)
        self._states[env] = None
        self._generators[env] = None if seed is None else torch.Generator().manual_seed(seed)

    def __call__(
        self,
        obs: Mapping[str, np.ndarray],
        goal: Mapping[str, np.ndarray] | None = None,
        reward: float | None = None,
    ) -> np.ndarray:
        """``{key: [...]}`` of one environment to an action ``[A]``, a discrete one a number;
        ``reward`` is that of the last action, for policies that count them."""
        action = self.act(
            {0: obs},
            None if goal is None else {0: goal},
            None if reward is None else {0: reward},
        )[0]
        bad = [key for key, x in self._frames[0][-1].items() if not np.isfinite(x).all()]
        hidden = bad and np.issubdtype(action.dtype, np.integer)
        if hidden or not np.isfinite(action).all():  # nothing that a robot should get
            raise ValueError(
                f"the action is NaN or infinite ({', '.join(bad) or 'no observation'} is): "
                f"{action}; call start_episode() before going on"
            )
        return action

    def act(
        self,
        obs_by_env: Mapping[int, Mapping[str, np.ndarray]],
        goal_by_env: Mapping[int, Mapping[str, np.ndarray]] | None = None,
        reward_by_env: Mapping[int, float] | None = None,
    ) -> dict[int, np.ndarray]:
        """The next action of each environment that has an observation here."""
        self._receive(reward_by_env or {}, obs_by_env)
        actions: dict[int, np.ndarray] = {}
        waiting = list(obs_by_env)
        while waiting:
            if waiting[0] not in self._rows:
                raise ValueError("call policy.start_episode() before the first observation")
            row_of = {self._rows[env]: env for env in reversed(waiting)}  # the first of each row
            actions |= self._act(row_of, obs_by_env, goal_by_env)
            waiting = [env for env in waiting if env not in actions]
        return actions

    def _act(
        self,
        env_by_row: Mapping[int, int],
        obs_by_env: Mapping[int, Mapping[str, np.ndarray]],
        goal_by_env: Mapping[int, Mapping[str, np.ndarray]] | None,
    ) -> dict[int, np.ndarray]:
        envs = env_by_row.items()
        obs = self._batch({row: self._stack(env, obs_by_env[env]) for row, env in envs})
        goal = None
        if goal_by_env is None and self.needs_goal:
            raise ValueError("this policy is conditioned on a goal: call policy(obs, goal)")
        if goal_by_env is not None:
            without = [env for env in env_by_row.values() if goal_by_env.get(env) is None]
            if without:
                raise ValueError(f"environment {without[0]}: no goal was given")
            goal = self._batch({r: self._select(goal_by_env[env], "goal") for r, env in envs})
        generators: list[torch.Generator | None] | None = None
        if all(self._generators[env] is not None for env in env_by_row.values()):
            generators = [None] * self.batch_size
            for row, env in envs:
                generators[row] = self._generators[env]
        states = {row: self._states[env] for row, env in envs}
        with torch.no_grad():
            batch, state = self.policy.act(obs, goal, self._join_states(states), generators)
            raw = self.policy.raw_action(batch).cpu().numpy()
        for row, env in envs:
            self._states[env] = tree.map_leaves(lambda x, row=row: x[row : row + 1], state)
            self._actions[env] = batch[row : row + 1]
        return {env: raw[row] for row, env in envs}

    def _receive(self, reward_by_env: Mapping[int, float], envs: Iterable[int]) -> None:
        if not self.counts_rewards:
            return
        for env in envs:
            if self._states.get(env) is None:  # the first step
                continue
            if env not in reward_by_env:
                raise ValueError(
                    "this policy counts rewards: call policy(obs, reward=the last action's)"
                )
            reward = torch.full((1, 1), float(reward_by_env[env]), device=self.policy.device)
            self._states[env] = self.policy.receive(self._states[env], self._actions[env], reward)

    def _stack(self, env: int, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The last ``frame_stack`` observations, ``[T, ...]``; the first one fills the stack."""
        frames, selected = self._frames[env], self._select(obs, "obs")
        frames.append(selected)
        while len(frames) < (frames.maxlen or 1):
            frames.append(selected)
        return tree.gather(np.stack, list(frames))

    def _select(self, obs: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
        if self.instruction is not None:
            obs = {**obs, LANGUAGE: self.instruction}
        missing = [key for key in self.policy.obs_spec.keys(group) if key not in obs]
        if missing:
            hint = " (set policy.instruction, or --lang)" if LANGUAGE in missing else ""
            what = "observation" if group == "obs" else group
            raise ValueError(
                f"the policy needs the {what} {', '.join(missing)}{hint}; the environment gave "
                f"{', '.join(sorted(obs))}"
            )
        # Copies: drivers reuse their buffers.
        selected = {k: np.array(obs[k], ndmin=1) for k in self.policy.obs_spec.keys(group)}
        self.policy.obs_spec.check_shapes({k: x.shape for k, x in selected.items()}, group)
        return selected

    def _batch(self, rows: Mapping[int, Mapping[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """Observations by row as one batch ``[batch_size, ...]``; other rows are zero."""

        def fill(leaves: list[np.ndarray]) -> torch.Tensor:
            batch = np.zeros((self.batch_size, *leaves[0].shape), dtype=leaves[0].dtype)
            batch[list(rows)] = leaves
            return torch.from_numpy(batch)

        return tree.gather(fill, list(rows.values()))

    def _join_states(self, states: Mapping[int, Any]) -> Any:
        """States by row as one batch. A state of zeros is a start, and ``None`` is one for all."""
        template = next((state for state in states.values() if state is not None), None)
        if template is None:
            return None
        blank = tree.map_leaves(torch.zeros_like, template)
        rows = [states.get(row) for row in range(self.batch_size)]
        return tree.gather(torch.cat, [blank if state is None else state for state in rows])


def rollout(
    policy: Any,
    env: Any,
    horizon: int,
    seed: int | None = None,
    terminate_on_success: bool = True,
) -> dict[str, Any]:
    """One episode in this process: ``{"Return", "Horizon", "Success_Rate"}``."""
    obs, _ = env.reset(seed=seed)
    goal = (env.get_wrapper_attr("get_goal")(),) if getattr(policy, "needs_goal", False) else ()
    policy.start_episode(seed=seed)
    total, length, success = 0.0, 0, False
    reward = 0.0
    for length in range(1, horizon + 1):  # noqa: B007 (read after the loop)
        last = {"reward": reward} if getattr(policy, "counts_rewards", False) else {}
        obs, reward, terminated, truncated, _ = env.step(policy(obs, *goal, **last))
        total += reward
        success = success or env.is_success()["task"]
        if terminated or truncated or (success and terminate_on_success):
            break
    return {"Return": total, "Horizon": length, "Success_Rate": float(success)}


def evaluate(policy: Any, pool: Any, requests: Sequence[Any]) -> Iterator[Any]:
    """Run ``requests`` (``EpisodeRequest``) in an ``EnvPool``; results in the order of ending.

    Bit-equal for any number of workers; torch's random state stays untouched.
    """
    if isinstance(policy, RolloutPolicy):
        policy = RolloutPolicy(policy.policy, EVALUATION_BATCH, policy.instruction)
    with _num_threads(1):  # idle threads would spin on the cores that the simulators need
        yield from pool.run(requests, policy)


@contextmanager
def _num_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def summarize(results: Iterable[Any]) -> dict[str, float]:
    """Mean over the episodes that ran: success rate with its 95 % interval, return, length.

    ``Crashed`` counts the episodes that could not be run; where all of them crashed there is no
    success rate.
    """
    ordered = sorted(results, key=lambda r: r.request.seed)
    ran = [r for r in ordered if r.error is None]
    logs: dict[str, float] = {"n": len(ran), "Crashed": len(ordered) - len(ran)}
    if ran:
        successes = sum(r.success for r in ran)
        low, high = wilson_interval(successes, len(ran))
        logs |= {
            "Success_Rate": successes / len(ran),
            "Success_Rate_Low": low,
            "Success_Rate_High": high,
            "Return": sum(r.total_reward for r in ran) / len(ran),
            "Horizon": sum(r.length for r in ran) / len(ran),
        }
    return logs


def wilson_interval(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion (Wilson, 1927); 95 % by default."""
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # The bounds are exact at the ends, where rounding would overshoot.
    return (centre - half if successes else 0.0), (centre + half if successes < n else 1.0)
