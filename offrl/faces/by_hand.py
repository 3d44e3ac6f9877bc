"""Steps of an environment that somebody else makes, for a trainer to learn from."""

import logging
from typing import Any

import numpy as np

from offrl.envs.vector import Stepped
from offrl.online.agent import Shown
from offrl.online.trainer import Trainer

log = logging.getLogger(__name__)


class ByHand:
    """Puts what a script observes, does and receives into the buffer of a trainer that has one
    environment.

    A step is known to be the last one of its episode only when the next episode begins, and so it
    is taken in when the script goes on.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self._obs: Any = None  # {key: [1, ...]}, what is observed now
        self._begins = True  # whether it begins what is learned from
        self._actions: Any = None  # [1, A], chosen for it
        self._reward = 0.0
        self._made: tuple[Any, float, Any] | None = None  # a step, until it is known what follows
        self._is_terminated = False  # whether the last episode ended by itself
        self._has_warned = False  # of steps that are lost
        self._remembered: Any = None  # by the policy, before it chose the last action

    def end(self, terminated: bool) -> None:
        """The next observation begins an episode."""
        if self._begins:
            return
        if self._actions is not None:  # nobody said what was observed after the last step
            self._end_unseen(terminated)
        self._begins, self._is_terminated, self._actions = True, terminated, None

    def _end_unseen(self, terminated: bool) -> None:
        judges = self.trainer.buffer.hindsight is not None  # what followed, by other goals
        if terminated and not judges:  # what followed counts for nothing
            self._made = self._actions, self._reward, self._obs
        elif not self._has_warned:
            self._has_warned = True
            log.warning(
                "the last observation of an episode was not appended (append_state), so that its "
                "last step is not learned from"
            )

    def receive(self, reward: float) -> None:
        """Give what the chosen action was rewarded with."""
        self._reward = reward

    def observe(self, obs: Shown) -> None:
        """Give what one environment shows now."""
        now = {key: np.asarray(x)[None] for key, x in obs.items()}
        if self._actions is not None:
            self._made = self._actions, self._reward, now
        elif not self._begins:  # what was done in between is not known
            self.end(terminated=False)
        self._obs, self._actions = now, None

    def choose(self) -> np.ndarray:
        """Choose an action to learn from, for what is observed now."""
        if self._begins:
            self._begin()
        else:
            self._take_in_step()
        trainer = self.trainer
        self._remembered = trainer.agent.remembered(trainer._begins)
        if trainer.alg.ON_POLICY and not len(trainer.buffer):  # a round begins
            trainer._memory = self._remembered
        self._actions, raw = trainer._act()
        self._begins, self._reward = False, 0.0
        return raw[0]

    def learn(self) -> dict[str, float]:
        """Make an update, or those of a round, if there is enough to learn from; their logs."""
        trainer, train = self.trainer, self.trainer.config.train
        num, needed = len(trainer.buffer), train.batch_size
        if trainer.alg.ON_POLICY and num:  # in the round, of which the first may be forgotten
            num, needed = trainer.step - trainer._steps_before, train.online.collect_steps
        if num < needed or trainer._is_early:
            return {}
        trainer.statistics.end_round()
        logs = [trainer._run_train()["logs"]]
        while trainer._is_due():
            logs.append(trainer._run_train()["logs"])
        trainer.statistics.update(trainer.alg)
        trainer._end_epochs()
        # A round begins, with the step that is not taken in yet, if there is one.
        trainer._memory, trainer._steps_before = self._remembered, trainer.step
        return {name: float(np.mean([x[name] for x in logs])) for name in logs[0]}

    def _begin(self) -> None:
        if self.trainer._obs is None:
            self.trainer._begin(self._obs)
        elif self._made is not None:
            self._take_in_step(first=self._obs)
        else:  # the last episode was left without a step
            self._take_in(np.zeros((1, self.trainer.alg.ac_dim)), 0.0, self._obs, is_step=False)

    def _take_in_step(self, first: Any = None) -> None:
        """Take in the last step; with ``first``, with which the next episode begins, as an end."""
        if self._made is not None:
            (actions, reward, obs), self._made = self._made, None
            self._take_in(actions, reward, obs, first)

    def _take_in(
        self, actions: Any, reward: float, obs: Any, first: Any = None, is_step: bool = True
    ) -> None:
        is_end = first is not None
        stepped = Stepped(
            obs=first if is_end else obs,
            rewards=np.array([reward]),
            terminated=np.array([is_end and self._is_terminated]),
            truncated=np.array([is_end and not self._is_terminated]),
            successes=np.array([-1]),
            is_step=np.array([is_step]),
            final_obs={0: {key: x[0] for key, x in obs.items()}} if is_end else {},
        )
        trainer = self.trainer
        trainer._take_in(actions, stepped, [])
        if trainer.alg.ON_POLICY and trainer.buffer.is_full:  # nobody has learned from it in time
            trainer.buffer.forget()
