"""Lets a trainer learn from the steps that a script makes in an environment."""

import logging
from typing import Any

import numpy as np

from offrl.envs.vector import Stepped
from offrl.online.agent import Observations
from offrl.online.trainer import ActingTrainer

log = logging.getLogger(__name__)


class ByHand:
    """Puts what a script observes, does and receives into the buffer of a trainer that has one
    environment.

    A step is known to be the last one of its episode only when the next episode begins. So it is
    taken in when the script goes on.
    """

    def __init__(self, trainer: ActingTrainer):
        self.trainer = trainer
        self._obs: Any = {}  # {key: [1, ...]}, what is observed now
        self._begins = True  # whether it begins an episode, or what is learned from
        self._actions: np.ndarray | None = None  # [1, A], chosen for it
        self._reward = 0.0
        # Actions, reward and next observation of a step that is not taken in yet.
        self._made: tuple[np.ndarray, float, Observations] | None = None
        self._is_terminated = False  # whether the last episode ended by itself
        self._has_warned = False  # of steps that are lost
        self._memory: Any = None  # of the policy, when it chose the last action

    def end(self, terminated: bool) -> None:
        """End the episode; the next observation begins another one."""
        if self._begins:
            return
        if self._actions is not None:  # nobody said what was observed after the last step
            judges = self.trainer.buffer.hindsight is not None  # what followed, by other goals
            if terminated and not judges:  # what followed counts for nothing
                self._made = self._actions, self._reward, self._obs
            elif not self._has_warned:
                self._has_warned = True
                log.warning(
                    "the last observation of an episode was not appended (append_state), so that "
                    "its last step is not learned from"
                )
        self._begins, self._is_terminated, self._actions = True, terminated, None

    def receive(self, reward: float) -> None:
        """Give what the chosen action was rewarded with."""
        self._reward = reward

    def observe(self, obs: Observations) -> None:
        """Give what one environment shows now, ``{key: [...]}``."""
        now = {key: np.asarray(x)[None] for key, x in obs.items()}
        if self._actions is not None:
            self._made = self._actions, self._reward, now
        elif not self._begins:  # what was done in between is not known
            self.end(terminated=False)
        self._obs, self._actions = now, None

    def choose(self) -> np.ndarray:
        """Choose an action to learn from, for what is observed now."""
        trainer = self.trainer
        if trainer.obs is None:
            trainer.begin(self._obs)
        elif self._begins or self._made is not None:
            self._take_in()
        self._memory = trainer.remembered()
        if trainer.alg.ON_POLICY and not len(trainer.buffer):  # a round begins
            trainer.round_memory = self._memory
        self._actions, raw = trainer.act()
        self._begins, self._reward = False, 0.0
        return raw[0]

    def learn(self) -> dict[str, float]:
        """Make an update, or those of a round, if there is enough to learn from; return the means
        of their logs."""
        trainer, train = self.trainer, self.trainer.config.train
        num, needed = len(trainer.buffer), train.batch_size
        if trainer.alg.ON_POLICY and num:  # in the round, of which the first may be forgotten
            num, needed = trainer.num_collected, train.online.collect_steps
        if num < needed or trainer.is_early:
            return {}
        trainer.end_round(num_updates=1)
        logs = [record["logs"] for record in trainer.learn()]
        # A round begins, with the step that is not taken in yet, if there is one.
        trainer.begin_round()
        trainer.round_memory = self._memory
        return {name: float(np.mean([x[name] for x in logs])) for name in logs[0]}

    def _take_in(self) -> None:
        """Take in the last step, as the end of an episode where another one has begun."""
        trainer = self.trainer
        # The last episode may have been left without a step.
        none = np.zeros((1, trainer.alg.ac_dim)), 0.0, self._obs
        (actions, reward, followed), is_step = self._made or none, self._made is not None
        self._made, is_end = None, self._begins and is_step
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
        if trainer.alg.ON_POLICY and trainer.buffer.is_full:  # nobody has learned from it in time
            trainer.buffer.forget()
