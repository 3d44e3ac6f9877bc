"""A trained policy that acts in environments: numpy in, numpy out."""

import copyreg
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import cloudpickle
import numpy as np
import torch

from offrl import tree
from offrl.acting.episode import (
    ACTION_MASK,
    EEF_POS,
    Action,
    ActionByEnv,
    GoalByEnv,
    Obs,
    ObsByEnv,
    Policy,
    RewardByEnv,
    Subgoal,
)
from offrl.acting.executor import Executor, RealTime, State
from offrl.specs import LANGUAGE


class _PolicyPickle:
    """Pickles a policy for another process; has the form of a module, as ``torch.save`` needs."""

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, what: Any) -> Any:
            if isinstance(what, torch.optim.Optimizer):  # of a user's own
                return type(None), ()
            if hasattr(type(what), "state_to_act"):
                return copyreg.__newobj__, (type(what),), what.state_to_act()  # type: ignore[attr-defined]
            if isinstance(what, torch.device):
                return torch.device, ("cpu",)
            return super().reducer_override(what)


def _policy_from_bytes(content: bytes) -> Any:
    kind, state = torch.load(BytesIO(content), map_location="cpu", weights_only=False)
    policy = object.__new__(kind)
    policy.__dict__.update(state)
    return policy


@dataclass
class Episode:
    """The memory of a policy in the episode of one environment."""

    row: int  # its row in the network's batches
    num_frames: int
    generator: torch.Generator | None  # source of its samples; None: global state
    frames: dict[str, np.ndarray] | None = None  # the last observations, ``[num_frames, ...]``
    state: Any = None  # the network's, one row
    plan: tuple[State, int] | None = None  # the executor's state, and this episode's row of it
    action: torch.Tensor | None = None  # the last one, ``[1, A]``, as the network gave it

    def see(self, obs: Mapping[str, np.ndarray]) -> None:
        """Append a copy of ``obs`` to the last observations; the first one fills all places."""
        if self.frames is None:
            self.frames = {k: np.stack([x] * self.num_frames) for k, x in obs.items()}
            return
        for key, stack in self.frames.items():  # in place, which takes half of the time
            if stack.dtype != obs[key].dtype:
                self.frames[key] = stack = stack.astype(np.result_type(stack, obs[key]))
            if self.num_frames > 1:
                stack[:-1] = stack[1:]
            stack[-1] = obs[key]


CHUNK_ROWS = (2, 8, 32)  # the sizes of batches in which chunks are predicted


class RolloutPolicy(Policy):
    """A trained policy ready to act: raw observations to raw actions, as numpy arrays.

    ``policy = RolloutPolicy(algo); policy.start_episode(); action = policy(obs)`` serves one
    environment; ``act`` serves many, each with an ``Episode`` of its own. The network always sees
    batches of ``batch_size`` rows, and an episode's seed determines its row: the last bits of a
    result depend on the batch's shape and on the row, but not on the content of other rows.

    An algorithm that predicts chunks of actions has an ``executor``, which asks for chunks when
    they are needed. Without a ``batch_size`` they are predicted in batches of a few fixed sizes,
    or, for episodes without a seed, of as many rows as needed.

    An algorithm that has no ``act``, but ``get_action(obs_dict, goal_dict=None)`` and ``reset()``,
    keeps the state of one episode itself, and serves one environment at a time.

    batch_size: the number of rows; ``None``: 1, or as many chunks as are needed.
    instruction: the embedding ``[E]`` of an instruction, for policies that were trained with one;
        ``None``: that of the environment.
    executor: plays chunks; ``None``: the one that the algorithm's config describes.
    """

    def __init__(
        self,
        algo: Any,
        batch_size: int | None = None,
        instruction: np.ndarray | None = None,
        executor: Executor | RealTime | None = None,
    ):
        self.policy = algo
        self.instruction = instruction
        self.needs_goal = bool(algo.obs_spec.keys("goal"))
        self.counts_rewards = algo.COUNTS_REWARDS
        self.executor: Executor | RealTime | None = executor or getattr(algo, "executor", None)
        self._keeps_state = not callable(getattr(algo, "act", None))
        self.num_environments = 1 if self._keeps_state else None
        if self._keeps_state or (batch_size is None and self.executor is None):
            batch_size = 1
        self.batch_size = batch_size
        self._keys = {group: algo.obs_spec.keys(group) for group in ("obs", "goal")}
        self._episodes: dict[int, Episode] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for the CPU of another process, without the parts that only training needs."""
        state = {**self.__dict__, "_episodes": {}}
        content = BytesIO()
        torch.save((type(self), state), content, pickle_module=_PolicyPickle)
        return _policy_from_bytes, (content.getvalue(),)

    @property
    def obs_keys(self) -> list[str]:  # type: ignore[override]
        """Keys of the observations that the policy reads."""
        given = () if self.instruction is None else (LANGUAGE,)
        return [key for key in self._keys["obs"] if key not in given]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.policy!r})"

    def __str__(self) -> str:
        return self.policy.global_config.algo_name

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        """Begin an episode in ``env``. Sampling depends on the seed, or else on torch's state."""
        if self._keeps_state:
            others = self._episodes.keys() - {env}
            if others:
                raise ValueError(
                    f"{self} defines get_action and no act: it keeps the state of one episode, and "
                    f"cannot serve environment {env} beside environment {others.pop()}; define "
                    "act(obs, goal, state, generators), or use one environment"
                )
            self.policy.reset()
        self.policy.set_eval()
        row = (env if seed is None else seed) % (self.batch_size or 1)
        num_frames = self.policy.global_config.train.frame_stack
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._episodes[env] = Episode(row, num_frames, generator)

    def __call__(self, obs: Obs, goal: Obs | None = None, reward: float | None = None) -> Action:
        """Choose an action ``[A]`` (discrete: a number) for the raw observation ``{key: [...]}``
        and the last action's ``reward``, if rewards count. Raises ``ValueError`` unless it is
        finite."""
        action = super().__call__(obs, goal, reward)
        if action is None:
            return None
        seen = self._episodes[0].frames or {}
        bad = [key for key, x in seen.items() if not np.isfinite(x[-1]).all()]
        hidden = bad and np.issubdtype(action.dtype, np.integer)
        if hidden or not np.isfinite(action).all():  # never give it to a robot
            raise ValueError(
                f"the action is NaN or infinite ({', '.join(bad) or 'no observation'} is): "
                f"{action}; call start_episode() before going on"
            )
        return action

    def act(
        self, obs_by_env: ObsByEnv, goal_by_env: GoalByEnv = None, reward_by_env: RewardByEnv = None
    ) -> ActionByEnv:
        """Choose the next action of each environment that has an observation here."""
        if not obs_by_env.keys() <= self._episodes.keys():
            raise ValueError("call policy.start_episode() before the first observation")
        goals, rewards = goal_by_env or {}, reward_by_env or {}
        for env, obs in obs_by_env.items():
            if self.needs_goal and goals.get(env) is None:
                raise ValueError(f"environment {env}: this policy needs a goal: policy(obs, goal)")
            episode = self._episodes[env]
            if self.counts_rewards and episode.action is not None:  # not in the first step
                if (reward := rewards.get(env)) is None:
                    raise ValueError("this policy counts rewards: policy(obs, reward=the last one)")
                number = torch.full((1, 1), float(reward), device=self.policy.device)
                episode.state = self.policy.receive(episode.state, episode.action, number)
            selected = self._select(obs, "obs", episode.frames)
            if ACTION_MASK in obs:
                selected[ACTION_MASK] = np.asarray(obs[ACTION_MASK])
            episode.see(selected)
        if self.executor is not None:
            return self._play_chunks(self.executor, list(obs_by_env), goals)
        actions: ActionByEnv = {}
        for rows in self._in_batches(obs_by_env):
            actions |= self._act(rows, goals)
        return actions

    def subgoal(self, env: int = 0) -> Subgoal | None:
        """Return the subgoal that the last action in ``env`` pursues, with the positions of end
        effectors that the policy observes, too. ``None`` if there are none."""
        episode = self._episodes.get(env)
        if episode is None or episode.state is None:
            return None
        followed = self.policy.subgoal_of(episode.state)
        if followed is None:
            return None
        subgoal, steps_left = followed
        keys = [key for key in self._keys["obs"] if key.endswith(EEF_POS) and key in subgoal]
        positions = {key: subgoal[key][0].cpu().numpy() for key in keys}
        return Subgoal(positions, int(steps_left)) if positions else None

    def _in_batches(self, envs: Iterable[int]) -> Iterator[dict[int, int]]:
        """Yield ``{row: environment}`` for each batch that is needed."""
        waiting = list(envs)
        while waiting:
            if self.batch_size is None:
                by_row = dict(enumerate(waiting[: CHUNK_ROWS[-1]]))
            else:  # the first of each row
                by_row = {self._episodes[env].row: env for env in reversed(waiting)}
            yield by_row
            waiting = [env for env in waiting if env not in by_row.values()]

    def _inputs(self, env_by_row: Mapping[int, int], goals: ObsByEnv) -> tuple[Any, ...]:
        """Make the network's inputs: observations, goals, and a random generator for each row."""
        envs = env_by_row.items()
        by_row = {row: self._episodes[env].generator for row, env in envs}
        has_seeds = None not in by_row.values()
        # Episodes with seeds are repeatable to the last bit, whatever else is in the batch.
        sizes = CHUNK_ROWS if has_seeds else (len(env_by_row),)
        num = self.batch_size or next(n for n in sizes if n >= len(env_by_row))
        obs = _batch({row: self._episodes[env].frames or {} for row, env in envs}, num)
        goal = None
        if self.needs_goal:
            goal = _batch({row: self._select(goals[env], "goal") for row, env in envs}, num)
        generators = [by_row.get(row) for row in range(num)] if has_seeds else None
        return obs, goal, generators

    def _act(self, env_by_row: Mapping[int, int], goals: ObsByEnv) -> dict[int, np.ndarray]:
        episodes = {row: self._episodes[env] for row, env in env_by_row.items()}
        obs, goal, generators = self._inputs(env_by_row, goals)
        rows = (episodes.get(row) for row in range(self.batch_size or 1))
        state = _join_states([episode and episode.state for episode in rows])
        act = self._get_action if self._keeps_state else self.policy.act
        with torch.no_grad():
            batch, state = act(obs, goal, state, generators)
            raw = self.policy.raw_action(batch).cpu().numpy()
        for row, episode in episodes.items():
            episode.state = _row(state, row)
            if self.counts_rewards:
                episode.action = batch[row : row + 1]
        return {env: raw[row] for row, env in env_by_row.items()}

    def _play_chunks(
        self, executor: Executor | RealTime, envs: Sequence[int], goals: ObsByEnv
    ) -> ActionByEnv:
        """Choose the next actions of chunks; ``None`` where the first chunk has not come yet."""

        def predict(due: torch.Tensor) -> Callable[[], torch.Tensor]:
            order = [envs[i] for i in due.tolist()]
            batches = [(rows, self._inputs(rows, goals)) for rows in self._in_batches(order)]

            @torch.no_grad()
            def infer() -> torch.Tensor:
                chunks: dict[int, torch.Tensor] = {}
                for by_row, inputs in batches:
                    predicted = self.policy.chunk(*inputs).cpu()
                    chunks |= {env: predicted[row] for row, env in by_row.items()}
                return torch.stack([chunks[env] for env in order])

            return infer

        episodes = [self._episodes[env] for env in envs]
        state = _join_plans([episode.plan for episode in episodes])
        with torch.no_grad():
            actions, plays, state = executor.step(len(envs), state, predict)
            raw = self.policy.raw_action(actions.to(self.policy.device)).cpu().numpy()
        for row, episode in enumerate(episodes):
            episode.plan = state, row
        return {env: raw[row] if plays[row] else None for row, env in enumerate(envs)}

    def _get_action(
        self, obs: dict[str, torch.Tensor], goal: Any, state: Any, generators: Any
    ) -> tuple[torch.Tensor, Any]:
        """Act by ``get_action``, with the episode's random state in place of torch's global one."""
        if self.policy.global_config.train.frame_stack == 1:
            obs = tree.map_leaves(lambda x: x[:, 0], obs)
        if generators is None:
            return self.policy.get_action(obs, goal), state
        device = self.policy.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generators[0])))
            return self.policy.get_action(obs, goal), state

    def _select(self, obs: Obs, group: str, known: Obs | None = None) -> dict[str, np.ndarray]:
        """Select the observations of a group, and check shapes that differ from those ``known``."""
        if self.instruction is not None:
            obs = {**obs, LANGUAGE: self.instruction}
        try:
            selected = {key: np.atleast_1d(obs[key]) for key in self._keys[group]}
        except KeyError:
            missing = [key for key in self._keys[group] if key not in obs]
            hint = " (set policy.instruction, or --lang)" if LANGUAGE in missing else ""
            what = "observation" if group == "obs" else group
            raise ValueError(
                f"the policy needs the {what} {', '.join(missing)}{hint}; the environment gave "
                f"{', '.join(sorted(obs))}"
            ) from None
        if known is None or any(known[k].shape[1:] != x.shape for k, x in selected.items()):
            self.policy.obs_spec.check_shapes({k: x.shape for k, x in selected.items()}, group)
        return selected


def _batch(rows: Mapping[int, Obs], num_rows: int) -> dict[str, torch.Tensor]:
    """Make one batch ``[num_rows, ...]`` of observations by row; other rows are zero."""
    batch = {}
    for key, like in next(iter(rows.values())).items():
        values = np.zeros((num_rows, *like.shape), dtype=like.dtype)
        for row, obs in rows.items():
            values[row] = obs[key]
        batch[key] = torch.from_numpy(values)
    return batch


def _join_states(states: Sequence[Any]) -> Any:
    """Join states of one row each to a batch. ``None`` becomes zeros, unless all are ``None``."""
    template = next((state for state in states if state is not None), None)
    if template is None:
        return None
    blank = tree.map_leaves(torch.zeros_like, template)
    return tree.gather(torch.cat, [blank if state is None else state for state in states])


def _join_plans(plans: Sequence[tuple[State, int] | None]) -> State | None:
    """Join plans to a batch; rows of the same batch stay as they are."""
    known = [plan for plan in plans if plan is not None]
    if not known:
        return None
    together = known[0][0]
    is_whole = len(plans) == len(known) == len(together["left"])
    if is_whole and all(s is together and i == row for row, (s, i) in enumerate(known)):
        return together
    return _join_states([plan and _row(*plan) for plan in plans])


def _row(state: Any, row: int) -> Any:
    return tree.map_leaves(lambda x: x[row : row + 1], state)
