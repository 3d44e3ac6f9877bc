"""Policies, episodes and their results, and the loop over the steps of an episode. Nothing in here
imports torch: simulators run in processes without it."""

import math
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import numpy as np

from offrl.processes import is_explained

Obs = Mapping[str, np.ndarray]
ObsByEnv = Mapping[int, Obs]
GoalByEnv = Mapping[int, Obs] | None
RewardByEnv = Mapping[int, float] | None
Action = np.ndarray | None  # ``[A]``; ``None``: the policy is not ready yet
ActionByEnv = dict[int, Action]
EEF_POS = "_eef_pos"  # suffix of the observations with end effectors' positions
ACTION_MASK = "action_mask"  # observation with the allowed discrete actions, if there is one
REACHED = 0.02  # metres between end effector and subgoal at which it counts as reached
RETURNS = {"reset": ("obs", "info"), "step": ("obs", "reward", "terminated", "truncated", "info")}
NOT_FINITE = "NaN or infinite"
LARGEST = float(np.finfo(np.float32).max)  # larger numbers overflow in networks
REMEDY = "correct the environment, or end its episodes before that"


class Misfit(ValueError):
    """Raised if a policy and an environment do not fit together: no further attempt would help."""


@dataclass(frozen=True)
class Subgoal:
    """The subgoal that a hierarchical policy pursues."""

    #: Desired positions of the end effectors, ``{key: [3]}`` in metres, by observation key.
    positions: dict[str, np.ndarray]
    steps_left: int  #: The number of actions after the last one that will pursue it.


class Policy:
    """Chooses actions for observations, in several environments at once. Trained policies
    (``RolloutPolicy``) and scripted experts derive from it, and so can your own::

        class Still(Policy):
            def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
                return {env: np.zeros(7) for env in obs_by_env}

    ``EnvPool.run``, ``evaluate`` and ``rollout`` take any of them.
    """

    needs_goal: bool = False  #: True if it gets each episode's goal (``env.get_goal()``).
    counts_rewards: bool = False  #: True if it needs the reward of each action.
    #: The largest number of environments that it can serve at once; ``None``: no limit.
    num_environments: int | None = None
    #: Keys of the observations that it reads (finite); simulators may leave out others. Empty: all.
    obs_keys: Sequence[str] = ()

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        """Begin an episode in ``env``, whose random numbers depend on ``seed`` alone."""

    def act(
        self, obs_by_env: ObsByEnv, goal_by_env: GoalByEnv = None, reward_by_env: RewardByEnv = None
    ) -> ActionByEnv:
        """Choose the next action ``{env: [A]}`` of each environment that has an observation
        ``{env: {key: [...]}}``; ``None`` while it is not ready, so that the robot stands still.
        Rewards are those of the last actions, 0 before the first."""
        raise NotImplementedError(type(self).__name__)

    def subgoal(self, env: int = 0) -> Subgoal | None:
        """Return the last action's subgoal in ``env``, if it has positions of end effectors."""
        return None

    def __call__(self, obs: Obs, goal: Obs | None = None, reward: float | None = None) -> Action:
        """Choose the next action ``[A]`` in one environment, environment 0."""
        goals = None if goal is None else {0: goal}
        rewards = None if reward is None else {0: reward}
        return self.act({0: obs}, goals, rewards)[0]


class _Wrapped(Policy):
    """A policy of a class that is not derived from ``Policy``."""

    def __init__(self, policy: Any):
        attributes = ("needs_goal", "counts_rewards", "num_environments", "obs_keys")
        for name in (*attributes, "start_episode"):
            setattr(self, name, getattr(policy, name, getattr(self, name)))
        if callable(getattr(policy, "subgoal", None)):  # it may be another attribute
            self.subgoal = policy.subgoal  # type: ignore[method-assign]
        self._act = policy.act
        num_parameters = len(signature(policy.act).parameters)
        self._num_taken = 3 if self.counts_rewards else min(2, num_parameters)

    def act(self, *arguments: Any) -> ActionByEnv:  # type: ignore[override]
        return self._act(*arguments[: self._num_taken])


def as_policy(policy: Any) -> Policy:
    """Make a policy of any object with ``act``, which gets those arguments that it has."""
    if isinstance(policy, Policy):
        return policy
    if not callable(getattr(policy, "act", None)):
        name = type(policy).__name__
        raise ValueError(f"{name} has no act, so is no policy: derive it from offrl.acting.Policy")
    return _Wrapped(policy)


@dataclass(frozen=True)
class EpisodeRequest:
    """An episode to run."""

    seed: int | None  #: Seed of the environment and the policy. ``None``: any.
    horizon: int  #: The largest number of steps.
    terminate_on_success: bool = True  #: True if it ends when the task is solved.
    frame_every: int | None = None  #: Steps between the frames of a video. ``None``: no video.
    record: bool = False  #: True if the result holds the trajectory.


@dataclass
class EpisodeResult:
    """The result of an episode: ``success``, ``total_reward`` and ``length``; ``frames`` and a
    ``trajectory`` if they were requested; an ``error`` if it tells nothing of the policy."""

    request: EpisodeRequest  #: The request that it answers.
    #: True if the task was solved at some step; ``None`` if the environment reports no success.
    success: bool | None = None
    total_reward: float = 0.0  #: The sum of the rewards.
    length: int = 0  #: The number of steps.
    #: Images ``[H, W, 3]`` of uint8.
    frames: list[np.ndarray] = field(default_factory=list)
    trajectory: dict[str, Any] | None = None  #: Arrays by path, as ``DemoWriter.write`` takes them.
    no_video: str | None = None  #: The reason why there are no (more) frames.
    #: For each subgoal that was pursued for all of its steps, the least distance in metres of the
    #: end effectors after one of these; with several, that of the farthest one.
    subgoal_distances: list[float] = field(default_factory=list)
    #: The reason why the episode was not run to its end, so that it tells nothing of the policy.
    error: str | None = None


def run_episode(
    env: Any,
    request: EpisodeRequest,
    answer: Callable[[Any, Any, float], np.ndarray | None],
    needs_goal: bool = False,
) -> EpisodeResult:
    """Run one episode in this process.

    answer: a ``Policy`` or another function of an observation, the goal (``None`` unless needed)
        and the last action's reward that returns an action. While it returns ``None``, the action
        of the environment's ``stand_still(last_action)`` is taken, or the last one repeated. If it
        has ``subgoal()`` as a ``Policy`` has, distances to subgoals are measured, and films show
        these in environments with ``mark(positions)``.
    needs_goal: true if ``answer`` gets the goal of the episode.
    """
    result = EpisodeResult(request)
    trajectory = _Recorder(env) if request.record else None
    space = getattr(env, "action_space", None)
    subgoal_of = getattr(answer, "subgoal", None)
    subgoal, nearest = None, math.inf
    obs, _ = returned(env.reset(seed=request.seed), "reset")
    if needs_goal and not env.has_wrapper_attr("get_goal"):
        raise Misfit(f"{type(env.unwrapped).__name__} has no get_goal, and the policy needs a goal")
    goal = env.get_wrapper_attr("get_goal")() if needs_goal else None
    reward, action = 0.0, None
    for step in range(request.horizon):
        chosen = answer(obs, goal, reward)
        action = _standing_still(env, action) if chosen is None else chosen
        _check_action(action, space)
        subgoal = subgoal_of() if callable(subgoal_of) else None
        if request.frame_every and step % request.frame_every == 0:
            _film(env, result, subgoal)
        if trajectory:
            trajectory.before_step(obs, action)
        obs, reward, terminated, truncated, _ = stepped(env.step(action))
        succeeds = reported_success(env.is_success()["task"])
        if succeeds is not None:
            result.success = bool(result.success) or succeeds
        result.total_reward += reward
        result.length += 1
        if subgoal is not None:
            gaps = (np.linalg.norm(obs[key] - x) for key, x in subgoal.positions.items())
            nearest = min(nearest, float(max(gaps)))
            if subgoal.steps_left == 0:
                result.subgoal_distances.append(nearest)
                nearest = math.inf
        if trajectory:
            trajectory.add(rewards=reward, dones=terminated or bool(succeeds))
        if terminated or truncated or (result.success and request.terminate_on_success):
            break
    if request.frame_every:
        _film(env, result, subgoal)
    if trajectory:
        result.trajectory = trajectory.arrays()
    return result


def rollout(
    policy: Policy,
    env: Any,
    horizon: int,
    seed: int | None = None,
    terminate_on_success: bool = True,
) -> dict[str, Any]:
    """Run one episode of a policy in this process.

    Returns ``{"Return", "Horizon", "Success_Rate"}``: the sum of the rewards, the number of steps,
    and 1 or 0, which is left out if the environment reports no success.
    """
    policy = as_policy(policy)
    policy.start_episode(seed=seed)
    request = EpisodeRequest(seed, horizon, terminate_on_success)
    result = run_episode(env, request, policy, policy.needs_goal)
    rate = {} if result.success is None else {"Success_Rate": float(result.success)}
    return {"Return": result.total_reward, "Horizon": result.length, **rate}


def returned(values: Any, method: str) -> Any:
    """Return the values of an environment's ``reset`` or ``step`` after checking their number."""
    names = RETURNS[method]
    if not isinstance(values, tuple) or len(values) != len(names):
        what = f"{len(values)} values" if isinstance(values, tuple) else type(values).__name__
        raise Misfit(f"the environment's {method} gave {what}, not gymnasium's {', '.join(names)}")
    return values


def stepped(values: Any) -> tuple[Any, float, bool, bool, Any]:
    """Return the values of one environment's ``step`` after checking and converting them."""
    obs, reward, terminated, truncated, info = returned(values, "step")
    flags = as_flag(terminated, "terminated"), as_flag(truncated, "truncated")
    return obs, finite(reward), *flags, info


def finite(reward: Any) -> float:
    """Return a reward as a float; raise ``ValueError`` unless it is one finite number."""
    number = reward if isinstance(reward, float) else _number(reward)
    if number is None:
        raise Misfit(f"the environment's reward is {reward!r:.80}; give one finite number")
    if not abs(number) <= LARGEST:
        raise ValueError(f"the reward is {NOT_FINITE}; {REMEDY}")
    return float(number)


def as_flag(value: Any, name: str) -> bool:
    """Return an environment's flag as a bool; refuse text and NaN, which Python takes for true."""
    if value is True or value is False:
        return value
    number = _number(value)
    if number not in (0, 1):
        raise Misfit(f"the environment's {name} is {value!r:.80}; give True or False")
    return bool(number)


def _number(value: Any) -> float | None:
    """Return a number, or that in an array of one; ``None`` for anything else."""
    array = np.asarray(value)
    is_one = array.size == 1 and array.dtype.kind in "biuf" and not np.ma.is_masked(value)
    return array.item() if is_one else None


def reported_success(said: Any) -> bool | None:
    """Return an environment's success as a bool; ``None`` if it reports none."""
    return None if said is None else as_flag(said, "success")


def check_obs(obs: Any, keys: Sequence[str]) -> None:
    """Raise ``ValueError`` for observations of ``keys`` that no policy can act on."""
    if not isinstance(obs, Mapping):
        raise Misfit(f"the environment's observation is {type(obs).__name__}, not a dict of arrays")
    for key in keys:
        values = np.asarray(obs.get(key, 0))
        if values.dtype.kind not in "biuf":
            raise Misfit(f"the environment's observation {key!r} is {values.dtype}, no numbers")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise ValueError(f"the environment's observation {key!r} is NaN or infinite")


def _check_action(action: Any, space: Any) -> None:
    """Refuse wrong shapes, which simulators would broadcast, and NaN, which they would accept."""
    values = np.asarray(action)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"the policy's action is NaN or infinite: {values}")
    shape = getattr(space, "shape", None)
    if shape is not None and values.size != math.prod(shape):
        raise Misfit(
            f"the policy's actions have the shape {[*values.shape]}, and the environment takes "
            f"{[*shape]}; name the environment that it was trained for"
        )


def _standing_still(env: Any, last: np.ndarray | None) -> np.ndarray:
    """Return the action to take while a policy is not ready."""
    if env.has_wrapper_attr("stand_still"):
        return env.get_wrapper_attr("stand_still")(last)
    return np.zeros(env.action_space.shape, env.action_space.dtype) if last is None else last


def _film(env: Any, result: EpisodeResult, subgoal: Subgoal | None) -> None:
    """Add a frame, with the subgoal if the environment draws it. A failure ends the video alone."""
    if result.no_video is not None:
        return
    try:
        if subgoal is not None and env.has_wrapper_attr("mark"):
            env.get_wrapper_attr("mark")([*subgoal.positions.values()])
        frame = env.render()
        if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3:
            what = getattr(frame, "dtype", type(frame).__name__)
            raise ValueError(f"render() gave {what}, not an image [H, W, 3] of uint8")
        result.frames.append(frame.copy())
    except Exception as error:
        result.no_video = describe(error)


class _Recorder:
    """Collects a trajectory in the layout of a robomimic demonstration."""

    def __init__(self, env: Any):
        self._get_state = getattr(env, "get_state", None)
        self._rows: defaultdict[str, list[Any]] = defaultdict(list)
        self._model: str | None = None

    def before_step(self, obs: dict[str, np.ndarray], action: np.ndarray) -> None:
        self.add(actions=action, **{f"obs/{key}": value for key, value in obs.items()})
        if self._get_state:
            state = self._get_state()
            self._model = self._model or state.get("model")
            self.add(states=state["states"])

    def add(self, **values: Any) -> None:
        for key, value in values.items():
            self._rows[key].append(np.array(value))  # a copy: simulators reuse arrays

    def arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {key: np.stack(rows) for key, rows in self._rows.items()}
        return arrays | ({"model_file": self._model} if self._model else {})


def describe(error: Exception) -> str:
    """Describe an error in one line: offrl's own sentence, or the type and the place of another."""
    sentence = " ".join(str(error).split())
    if is_explained(error):
        return sentence
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    what = f"{type(error).__name__}: {sentence}".removesuffix(": ")
    return f"{what} ({frame.f_code.co_filename}:{line})"
