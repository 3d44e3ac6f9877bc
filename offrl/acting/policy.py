"""A trained policy at environments: numpy in, numpy out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from offrl import tree
from offrl.specs import LANGUAGE


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
