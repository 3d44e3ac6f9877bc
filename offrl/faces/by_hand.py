"""Passes the steps that a script makes in an environment to a trainer."""

import logging
from typing import Any

import numpy as np

from offrl.envs.vector import Stepped
from offrl.online.agent import Observations
from offrl.online.trainer import ActingTrainer

log = logging.getLogger(__name__)


class ByHand:
    """Puts a script's observations, actions and rewards into the buffer of a trainer that has one
    environment. Only when the next episode begins is a step known to be the last of its episode, so
    it is stored later."""

    def __init__(self, trainer: ActingTrainer):
        self.trainer = trainer
        self._obs: Any = {}  # {key: [1, ...]}, the present observation
        self._begins = True  # whether it begins an episode or a round
        self._actions: np.ndarray | None = None  # [1, A], chosen for it
        self._reward = 0.0
        # Actions, reward and next observation of a step that is not stored yet.
        self._pending: tuple[np.ndarray, float, Observations] | None = None
        self._is_terminated = False  # whether the last episode ended by itself
        self._has_warned = False  # warned of lost steps
        self._memory: Any = None  # the policy's state before the last action

    def end(self, terminated: bool) -> None:
        """End the episode; the next observation begins another one."""
        if self._begins:
            return
        if self._actions is not None:  # the observation after the last step is missing
            judges = self.trainer.buffer.hindsight is not None  # hindsight judges the next state
            if terminated and not judges:  # the next observation is not used
                self._pending = self._actions, self._reward, self._obs
            elif not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the last observation of an episode was not appended (append_state), so that "
                    "its last step is not learned from"
                )
        self._begins, self._is_terminated, self._actions = True, terminated, None

    def receive(self, reward: float) -> None:
        """Set the reward of the chosen action."""
        self._reward = reward

    def observe(self, obs: Observations) -> None:
        """Set the present observation of the environment, ``{key: [...]}``."""
        now = {key: np.asarray(x)[None] for key, x in obs.items()}
        if self._actions is not None:
            self._pending = self._actions, self._reward, now
        elif not self._begins:  # the action in between is unknown
            self.end(terminated=False)
        self._obs, self._actions = now, None

    def choose(self) -> np.ndarray:
        """Choose an action to learn from, for the present observation."""
        trainer = self.trainer
        if trainer.obs is None:
            trainer.take_in_first(self._obs)
        elif self._begins or self._pending is not None:
            self._take_in()
        self._memory = trainer.agent.remembered(trainer.begins)
        if trainer.alg.ON_POLICY and not len(trainer.buffer):  # a round begins
            trainer.round_memory = self._memory
        self._actions, raw = trainer.choose_actions()
        self._begins, self._reward = False, 0.0
        return raw[0]

    def learn(self) -> dict[str, float]:
        """Make an update, or those of a round, if there are enough steps; return the means of their
        logs."""
        trainer, train = self.trainer, self.trainer.config.train
        num, needed = len(trainer.buffer), train.batch_size
        if trainer.alg.ON_POLICY and num:  # in the round, whose first steps may be dropped
            num, needed = trainer.num_collected, train.online.collect_steps
        if num < needed or trainer.is_early:
            return {}
        trainer.end_round(num_updates=1)
        logs = [record["logs"] for record in trainer.make_updates()]
        # A round begins with the step that is not stored yet, if there is one.
        trainer.begin_round()
        trainer.round_memory = self._memory
        return {name: float(np.mean([x[name] for x in logs])) for name in logs[0]}

    def _take_in(self) -> None:
        """Store the last step, as the end of an episode if another one has begun."""
        trainer = self.trainer
        # The last episode may have had no step.
        none = np.zeros((1, trainer.alg.ac_dim)), 0.0, self._obs
        (actions, reward, followed), is_step = self._pending or none, self._pending is not None
        self._pending, is_end = None, self._begins and is_step
        stepped = Stepped(
            obs=self._obs,
            rewards=np.array([reward]),
            terminated=np.array([is_end and self._is_terminated]),
            truncated=np.array([is_end and not self._is_terminated]),
            successes=np.array([-1]),
            is_step=np.array([is_step]),
            final_obs={0: {key: x[0] for key, x in followed.items()}} if is_end else {},
        )
        trainer.take_in(actions, stepped)
        if trainer.alg.ON_POLICY and trainer.buffer.is_full:  # the script has not learned in time
            trainer.buffer.forget()
