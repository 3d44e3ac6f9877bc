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
    randomness of its own. The network always sees batches of ``batch_size`` rows, filled up with
    zeros: kernels differ in the last bits with the batch shape.
    """

    def __init__(self, algo: Any, batch_size: int = 1):
        self.policy = algo
        self.batch_size = batch_size
        self.algo_name: str = algo.global_config.algo_name
        self._frames: dict[int, deque] = {}
        self._states: dict[int, Any] = {}
        self._generators: dict[int, torch.Generator | None] = {}

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        """Forget the last episode of ``env``. With a seed, the episode's sampling depends on it
        alone; without, on torch's global random state."""
        self.policy.set_eval()
        self._frames[env] = deque(maxlen=self.policy.global_config.train.frame_stack)
        self._states[env] = None
        self._generators[env] = None if seed is None else torch.Generator().manual_seed(seed)

    def __call__(
        self, obs: Mapping[str, np.ndarray], goal: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """``{key: [...]}`` of one environment to an action ``[A]``."""
        return self.act({0: obs}, None if goal is None else {0: goal})[0]

    def act(
        self,
        obs_by_env: Mapping[int, Mapping[str, np.ndarray]],
        goal_by_env: Mapping[int, Mapping[str, np.ndarray]] | None = None,
    ) -> dict[int, np.ndarray]:
        """The next action of each environment that has an observation here."""
        actions: dict[int, np.ndarray] = {}
        envs = list(obs_by_env)
        for i in range(0, len(envs), self.batch_size):
            rows = envs[i : i + self.batch_size]
            goals = None if goal_by_env is None else [goal_by_env[e] for e in rows]
            actions |= self._act(rows, [obs_by_env[e] for e in rows], goals)
        return actions

    def _act(
        self,
        envs: Sequence[int],
        observations: Sequence[Mapping[str, np.ndarray]],
        goals: Sequence[Mapping[str, np.ndarray]] | None,
    ) -> dict[int, np.ndarray]:
        stacked = [self._stack(env, obs) for env, obs in zip(envs, observations, strict=True)]
        goal = None
        if goals is not None:
            goal = self._batch([self._select(g, "goal") for g in goals])
        generators = None
        if all(self._generators[env] is not None for env in envs):
            padding = [None] * (self.batch_size - len(envs))
            generators = [*(self._generators[env] for env in envs), *padding]
        with torch.no_grad():
            batch, state = self.policy.act(
                self._batch(stacked), goal, self._join_states(envs), generators
            )
            raw = self.policy.action_normalizer.unnormalize_vector(batch).cpu().numpy()
        for row, env in enumerate(envs):
            self._states[env] = tree.map_leaves(lambda x, row=row: x[row : row + 1], state)
        return {env: raw[row] for row, env in enumerate(envs)}

    def _stack(self, env: int, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The last ``frame_stack`` observations, ``[T, ...]``; the first one fills the stack."""
        if env not in self._frames:
            raise ValueError("call policy.start_episode() before the first observation")
        frames, selected = self._frames[env], self._select(obs, "obs")
        frames.append(selected)
        while len(frames) < (frames.maxlen or 1):
            frames.append(selected)
        return tree.gather(np.stack, list(frames))

    def _select(self, obs: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
        missing = [key for key in self.policy.obs_spec.keys(group) if key not in obs]
        if missing:
            raise ValueError(
                f"the policy needs the observation {', '.join(missing)}; the environment gave "
                f"{', '.join(sorted(obs))}"
            )
        return {key: np.asarray(obs[key]) for key in self.policy.obs_spec.keys(group)}

    def _batch(self, rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        def pad(leaves: list[np.ndarray]) -> np.ndarray:
            missing = self.batch_size - len(leaves)
            return np.stack(leaves + [np.zeros_like(leaves[0])] * missing)

        return self.policy.to_device(tree.map_leaves(torch.from_numpy, tree.gather(pad, rows)))

    def _join_states(self, envs: Sequence[int]) -> Any:
        """States of the rows, ``[batch_size, ...]``. ``None`` where there is none yet: a policy
        starts from it, so a batch of episodes at different ages needs a start state as tensors."""
        states = [self._states[env] for env in envs]
        if all(state is None for state in states):
            return None
        template = next(state for state in states if state is not None)
        states = [tree.map_leaves(torch.zeros_like, template) if s is None else s for s in states]
        states += [tree.map_leaves(torch.zeros_like, template)] * (self.batch_size - len(envs))
        return tree.gather(torch.cat, states)


def rollout(
    policy: Any,
    env: Any,
    horizon: int,
    seed: int | None = None,
    terminate_on_success: bool = True,
) -> dict[str, Any]:
    """One episode in this process: ``{"Return", "Horizon", "Success_Rate"}``."""
    obs, _ = env.reset(seed=seed)
    policy.start_episode(seed=seed)
    total, length, success = 0.0, 0, False
    for length in range(1, horizon + 1):  # noqa: B007 (read after the loop)
        obs, reward, terminated, truncated, _ = env.step(policy(obs))
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
        policy = RolloutPolicy(policy.policy, batch_size=EVALUATION_BATCH)
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
