"""The agent for scripts: it acts, learns, trains and plays."""

from abc import ABCMeta
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from offrl.acting.episode import ACTION_MASK, Policy, as_flag, check_obs, finite
from offrl.algos.base import Seen
from offrl.algos.shared.model import Model
from offrl.assembly.spaces import clipped
from offrl.assembly.start import Configs
from offrl.config import Config
from offrl.faces.session import Session, sorted_arguments
from offrl.online.agent import BaseAgent, Obs, PolicyAgent


class Agent(BaseAgent, metaclass=ABCMeta):
    """Acts in environments and learns, by an ``Algorithm`` or by a config. Made of a config, it can
    also ``train`` and ``play``.

    A script steps an ``Environment`` itself and passes observations and rewards to the agent::

        state, over = agent.append_state(env.reset()[0]), False
        while not over:
            obs, agent.reward, terminated, truncated, _ = env.step(agent.action(state))
            over = terminated or truncated
            state = agent.append_state(obs)
            agent.optimize()
        agent.reset(terminated)

    Derive from it to explore in another way. In a pipeline (``offrl.online.Registers``) it is made
    as ``Agent(env, alg, agent_config)``, and acts in ``env`` by ``infer_action`` and
    ``handle_env_feedback`` in each step.

    cfgs: An ``Algorithm``; or a config, nested dicts of keys that differ from the defaults, or the
        path of a config file.
    model: Networks with initial weights (``alg.model`` of another agent); or a module of your own,
        or its class, for the policy or the values (``use_network``).
    model_file: A checkpoint with initial weights instead, see ``init``.
    device: ``"cpu"`` or ``"cuda"``; ``None``: the config's.
    log_level: The least level of logged messages (``"debug"``, ``"info"``, ``"warning"``).
    obs_ndim: With an ``Algorithm``, the number of dimensions of a single observation.
    """

    config: Config  #: That it was made of, if it was.
    env: Any = None
    _session: Session | None = None
    _state: Any = None
    _memory: Any = None  # of the deterministic policy
    _reward = 0.0
    ep_reward = 0.0  #: The sum of the rewards of the episode.

    def __init__(
        self,
        cfgs: Any,
        model: Model | None = None,
        model_file: str | Path | None = None,
        device: torch.device | str | None = None,
        log_level: str | int = "info",
        obs_ndim: int = 1,
    ):
        self._forget_episode()
        #: In a pipeline, the data of a step if ``handle_env_feedback`` returns nothing.
        self.transition_data: dict[str, Any] = {}
        given = sorted_arguments(cfgs, model, model_file, device, log_level)
        self.agent_config: Any = given.agent_config or {}
        vars(self).update(given.attributes)
        super().__init__(given.alg, obs_ndim)
        self._session = given.session(self.augment_state)

    def init(self, model_file: str | Path) -> None:
        """Restart from a checkpoint of the same algorithm: load its weights and statistics. Raises
        ``ValueError`` for a checkpoint of another algorithm."""
        self._needed_session("init").begin(model_file)

    @property
    def alg(self) -> Any:
        """The algorithm that it carries."""
        return self._alg if self._session is None else self._session.trainer.alg

    @alg.setter
    def alg(self, alg: Any) -> None:
        self._alg = alg

    # -- the episode that a script makes ----------------------------------------------------------

    @property
    def reward(self) -> float:
        """The reward of the last action. Setting it also adds it to ``ep_reward``."""
        return self._reward

    @reward.setter
    def reward(self, reward: float) -> None:
        self._reward = finite(reward)
        self.ep_reward += self._reward
        if self._session is not None:
            self._session.by_hand.receive(self._reward)

    @property
    def state(self) -> dict[str, np.ndarray] | None:
        """The last state of ``append_state``, ``{key: [frame_stack, ...]}``; ``None`` before the
        first observation of an episode. Setting it appends an observation."""
        return self._state

    @state.setter
    def state(self, state: Any) -> None:
        if state is None or self._session is None:  # without a config nothing is stacked
            self._state = state
        elif state is not self._state:
            self.append_state(state)

    def reset(self, terminated: bool = False) -> None:
        """Begin an episode.

        terminated: True if the last episode terminated, so that no value follows its end. False: it
            was cut off, for example by a time limit.
        """
        terminated = as_flag(terminated, "terminated")
        self._forget_episode()
        if self._session is not None:
            self._session.by_hand.end(terminated)

    def flash(self) -> None:
        """Set ``reward`` and ``ep_reward`` to zero; the episode goes on."""
        self._reward = self.ep_reward = 0.0

    def augment_state(self, state: Any) -> Any:
        """Transform an observation before it is used; override it. All observations pass through
        it, also those of ``train`` and ``play``."""
        return state

    def append_state(self, state: Any) -> dict[str, np.ndarray]:
        """Append an observation, and return the stacked last ones, ``{key: [frame_stack, ...]}``;
        the first one of an episode is repeated."""
        session = self._needed_session("append_state")
        trainer = session.trainer
        named = trainer.alg.named(self.augment_state(state))
        keys = sorted({*trainer.alg.obs_spec.keys("obs"), ACTION_MASK} & {*named})
        check_obs(named, keys)
        obs = {key: np.asarray(named[key]) for key in keys}
        trainer.alg.obs_spec.check_shapes({k: np.shape(x) for k, x in named.items()}, "obs")
        num = trainer.config.train.frame_stack
        before = self._state or {key: np.stack([x] * num) for key, x in obs.items()}
        self._state = {key: np.concatenate([before[key][1:], x[None]]) for key, x in obs.items()}
        session.by_hand.observe(obs)
        return self._state

    def action(self, state: Any, deterministic: bool = False) -> np.ndarray:
        """Choose the action for the last state of ``append_state``, or for an observation, which is
        appended. Explores unless ``deterministic``. Returns it as the environment takes it: float32
        ``[A]``, or an integer if actions are discrete."""
        if self._session is None:
            return self.predict(state) if deterministic else self.sample(state)
        if state is None or state is not self._state:
            self.append_state(state)
        if not deterministic:
            return self._session.by_hand.choose()
        batch = {key: torch.from_numpy(x)[None] for key, x in self._state.items()}
        self.alg.set_eval()
        with torch.no_grad():
            action, self._memory = self.alg.act(Seen(batch, state=self._memory))
            raw = self.alg.raw_action(action).cpu().numpy()[0]
        return clipped(raw, self._session.trainer.envs.action_space)

    def optimize(self) -> dict[str, float]:
        """Make one update if there are enough steps, and return its logs, else an empty dict.
        On-policy algorithms make all updates of a round of ``collect_steps`` steps; beyond twice as
        many, the oldest steps are dropped."""
        return self._needed_session("optimize").by_hand.learn()

    def _forget_episode(self) -> None:
        self._state = self._memory = None
        self.flash()

    # -- whole trainings and episodes -------------------------------------------------------------

    def train(
        self,
        env: gymnasium.Env | None = None,
        train_cfgs: Configs | None = None,
        gitsha: str | None = None,
        model_dest: str | Path | None = None,
    ) -> dict[str, float]:
        """Train in an environment for ``train.num_steps``, or until the mean return of the last
        episodes (``train.online.solved_episodes``) reaches its ``env_solution``.

        Checkpoints are written into ``model_dest`` as ``agent-STEP-SHA8.pth`` when
        ``experiment.save`` says so, and as ``agent-final-SHA8.pth`` at the end; a config file that
        the agent was made of stands beside them. Returns ``Steps``, ``Episodes``, the mean
        ``Return`` of the last ones, and whether the task is ``Solved`` (1 or 0).

        env: ``None``: the one that the config names.
        train_cfgs: Keys that differ from the section ``train`` of the config; or a whole config, or
            its path, whose section is used.
        gitsha: The commit whose first eight characters are SHA8; ``None``: that of the repository
            of the working folder.
        model_dest: ``None``: ``train.model_dest``; nothing is written if that is null, or
            ``experiment.save.enabled`` is false.
        """
        return self._needed_session("train").train(env, train_cfgs, gitsha, model_dest)

    def play(
        self,
        env: gymnasium.Env | None = None,
        test_cfgs: Configs | None = None,
        gitsha: str | None = None,
    ) -> dict[str, float]:
        """Play episodes without exploring, and return their summary (``Return``, ``Horizon``,
        ``Success_Rate`` and more). If the environment was made with ``play``, show them in a
        window, or without a display film them into ``play-SHA8.mp4``.

        test_cfgs: Keys that differ from the section ``experiment.rollout`` of the config (``n``,
            ``horizon``, ``terminate_on_success``); or a whole config, or its path.
        gitsha: As in ``train``.
        """
        return self._needed_session("play").play(_Player(self), env, test_cfgs, gitsha)

    def _needed_session(self, method: str) -> Session:
        if self._session is None:
            raise ValueError(
                f"{method}: this agent is made of an Algorithm; make it of a config, Agent(cfgs)"
            )
        return self._session

    # -- the roles --------------------------------------------------------------------------------

    def predict(self, obs: Obs) -> np.ndarray:
        return super().predict(obs) if self._session is None else self._session.agent.predict(obs)

    def sample(self, obs: Obs) -> np.ndarray:
        return super().sample(obs) if self._session is None else self._session.agent.sample(obs)

    def learn(self, data: Mapping[str, Any]) -> dict[str, float]:
        return super().learn(data) if self._session is None else self._session.agent.learn(data)

    # -- in a pipeline ----------------------------------------------------------------------------

    def infer_action(self, state: Any, use_explore: bool) -> Any:
        """Choose the action in a state by ``alg.predict``. If that returns a number for each
        discrete action, take the largest one's, or sample from their softmax with
        ``use_explore``."""
        predicted = self.alg.predict(state)
        space = getattr(self.env, "action_space", None)
        num = getattr(space, "n", None)
        if num is None or num < 2 or np.shape(predicted) != (num,):
            return predicted
        logits = np.asarray(predicted, dtype=np.float64)
        if use_explore:  # the argmax with Gumbel noise samples from the softmax
            logits = logits + np.random.gumbel(size=num)
        return int(getattr(space, "start", 0) + np.argmax(logits))

    def handle_env_feedback(
        self, next_raw_state: Any, reward: Any, done: bool, info: Any, use_explore: bool
    ) -> Mapping[str, Any] | None:
        """Handle the result of an action. Returns the trajectory's data of the step; ``None``:
        ``transition_data``, or else ``state``, ``action``, ``reward``, ``next_state``, ``done`` and
        ``info``."""
        return None


Agent.register(PolicyAgent)  # the agents that trainers make


class _Player(Policy):
    """An agent as a policy that does not explore."""

    def __init__(self, agent: Agent):
        self._agent = agent

    def start_episode(self, env: int = 0, seed: int | None = None) -> None:
        self._agent.reset()

    def __call__(self, obs: Any, goal: Any = None, reward: float | None = None) -> np.ndarray:
        return self._agent.action(self._agent.append_state(obs), deterministic=True)
