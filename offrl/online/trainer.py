"""The control flow of learning while acting, as a generator of records."""

import logging
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from offrl.acting.policy import RolloutPolicy
from offrl.assembly.acting import ActingExperiment, Envs, assemble
from offrl.assembly.start import Configs, class_of, complete, name_of
from offrl.checkpoint import describe_policy
from offrl.config.files import nested_all
from offrl.envs import close, make_env
from offrl.evaluation import SELECTION_SEEDS, requests_of, run_episodes, summarize
from offrl.online.collector import Collector, EndedEpisodes
from offrl.reports.records import Record, Recording
from offrl.seeding import preserved_rng
from offrl.tree import map_leaves

log = logging.getLogger(__name__)


class ActingTrainer(Collector, Recording):
    """Acts and learns: ``for record in Trainer(env_id="CartPole-v1", algo_name="dqn")(): ...``.

    A record is ``{"type", "epoch", "step", "time", "logs"}``, one for each step of the control
    flow: ``collect`` when all environments have made ``train.online.collect_steps`` steps,
    ``train`` after each update, ``restart`` where environments hung. ``step`` counts the steps in
    all environments. Work begins when the first record is requested; nothing is written. Derive
    from it for another control flow: override ``round``, which ``__call__``, ``train.py`` and
    ``Agent.train`` repeat.

    config: made by ``config_factory``, nested dicts of keys that differ from the defaults, or the
        path of a config file.
    env_id, algo_name, num_steps, seed: shorthands for ``experiment.env``, ``algo_name``,
        ``train.num_steps`` and ``train.seed`` in it. Without ``num_steps`` it never ends.
    envs: existing environments, offrl's or gymnasium's (``gymnasium.make_vec``), instead of those
        that the config names.
    earlier: a checkpoint of this training, which is about to be resumed (``restore``), instead of
        that of ``experiment.ckpt_path``.
    """

    NUM_ENVS: int | None = None  # number to make; ``None``: as in the config

    def __new__(
        cls,
        config: Configs | None = None,
        env_id: str | None = None,
        algo_name: str | None = None,
        *arguments: Any,
        **options: Any,
    ) -> "ActingTrainer":
        if cls is ActingTrainer and (name := algo_name or name_of(config)):
            cls = getattr(class_of(name), "TRAINER", cls)  # a user's own trainer class
        return super().__new__(cls)

    def __init__(
        self,
        config: Configs | None = None,
        env_id: str | None = None,
        algo_name: str | None = None,
        num_steps: int | None = None,
        seed: int | None = None,
        envs: Envs | None = None,
        earlier: Mapping[str, Any] | None = None,
    ):
        said: dict[str, Any] = {"algo_name": algo_name, "experiment.env": env_id}
        said |= {"train.num_steps": num_steps, "train.seed": seed}
        completed = complete(config, nested_all(said))
        experiment = assemble(completed, envs, earlier, self.NUM_ENVS)
        super().__init__(experiment, self._make_buffer(experiment))
        self._batches: Iterator[dict[str, Any]] = iter(())  # the round's remaining batches
        self._batch: Any = None  # the batch of the next update
        self._steps_before = 0  # steps when the last round began
        self._num_epochs = 0  # finished epochs that the algorithm knows of
        self._kept_from = 0  # the step at which the replay was last empty

    def __repr__(self) -> str:
        env, last = self.env_args["env_name"], self.config.train.num_steps
        return f"{type(self).__name__}({self.alg!r} in {env}, step {self.step} of {last or 'any'})"

    def _make_buffer(self, experiment: ActingExperiment) -> Any:
        return experiment.make_buffer()

    def __call__(self) -> Iterator[Record]:
        """Act and learn, and yield a record after each part of the work."""
        while self.step < (self.config.train.num_steps or math.inf) and not self.is_solved:
            yield from self.round()

    def round(self) -> Iterator[Record]:
        """Collect steps once, and make the updates that are then due. Yields their records."""
        collected = self._run_collect()
        if self.num_hung:
            yield self.record("restart", {"Restarts": self.num_hung})
        yield collected
        yield from self.make_updates()
        self.statistics.update(self.alg)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """The epoch that the training is in, from 1 on."""
        steps: Any = self.config.experiment.epoch_every_n_steps
        return 1 + max(0, self.step - 1) // steps

    @property
    def is_solved(self) -> bool:
        """Say whether the mean return of the last episodes has reached
        ``train.online.solved_return``, which ends the training."""
        solved, last = self.config.train.online.solved_return, self._last_returns
        return solved is not None and len(last) == last.maxlen and self.smoothed_return >= solved

    @property
    def problems(self) -> list[str]:
        """Return problems in other processes despite which the training goes on."""
        hung = f"environments hung and began anew, {self.num_restarts} times"
        return [hung] if self.num_restarts else []

    def traffic(self) -> dict[str, float]:
        """Return numbers for the log on trajectories from other processes since the last call."""
        return {}

    def waits(self) -> dict[str, float]:
        """Return the seconds of waiting for these."""
        return {}

    @cached_property
    def eval_env(self) -> Any:
        """The environment of ``evaluate``, made on first use."""
        try:
            return make_env(self.env_args)
        except ValueError as error:
            raise ValueError(
                f"evaluate: {error}. If envs were given, name one to evaluate in (env_id)"
            ) from None

    def evaluate(self) -> Record:
        """Play the episodes of ``experiment.rollout`` without exploring, always from the same
        initial states, and return a summary (``Return``, ``Horizon``, ``Success_Rate`` and more).
        Evaluation does not affect the training."""
        requests = requests_of(self.config.experiment.rollout, SELECTION_SEEDS)
        with preserved_rng():
            results = list(run_episodes(RolloutPolicy(self.alg), self.eval_env, requests))
        return self.record("rollout", summarize(results))

    def close(self) -> None:
        """End the environments."""
        super().close()
        if "eval_env" in self.__dict__:
            close(self.eval_env, self.env_args["env_name"])

    def describe(self) -> dict[str, Any]:
        """Return a checkpoint's part on the policy, its environment and its statistics."""
        experiment = self.experiment
        rewards = experiment.reward_stats or self.statistics.reward_stats
        shapes = experiment.obs_shapes, experiment.ac_dim
        described = describe_policy(self.alg, self.config, self.env_args, *shapes, rewards, {})
        return described | {"running_statistics": self.statistics.moments()}

    # -- acting -----------------------------------------------------------------------------------

    def _run_collect(self) -> Record:
        """Make ``collect_steps`` steps in every environment, and put them into the buffer. The logs
        are means over the episodes that ended."""
        self.begin_round()
        ended = self.make_steps(self.config.train.online.collect_steps)
        self.end_round(self._num_due())
        return self.record("collect", summary_of(ended))

    def begin_round(self) -> None:
        """Normalise the policy's observations by all statistics so far, and tell the algorithm
        which epochs are over."""
        self.statistics.update(self.alg)
        steps: Any = self.config.experiment.epoch_every_n_steps
        while self._num_epochs < self.step // steps:
            self._num_epochs += 1
            self.alg.on_epoch_end(self._num_epochs)
        self._steps_before = self.step

    @property
    def num_collected(self) -> int:
        """The number of steps of this round, in all environments."""
        return self.step - self._steps_before

    @property
    def is_early(self) -> bool:
        """Say whether steps are only collected so far, without learning."""
        return self.step - self._kept_from <= self.experiment.num_before

    def end_round(self, num_updates: int) -> None:
        """Prepare learning from the steps so far. On-policy algorithms choose the number of updates
        themselves, unless ``num_updates`` is 0."""
        self.statistics.end_round()
        self._batch, self._batches = None, self._make_batches(num_updates)

    # -- learning ---------------------------------------------------------------------------------

    def make_updates(self) -> Iterator[Record]:
        """Make the remaining updates of this round, and yield a record of each."""
        while self._is_due():
            yield self._run_train()

    def _run_train(self) -> Record:
        """Make one update, whose record has the algorithm's logs."""
        if not self._is_due():  # one more than is due was requested
            self._batches = self._make_batches(1)
            self._batch = next(self._batches)
        batch, self._batch = self._batch, None
        logs = self.agent.update(batch, self.epoch)
        if "weights" in batch and self.alg.td_errors is not None:
            self.buffer.learned(self.alg.td_errors)
        if "loss" not in logs:
            raise ValueError(
                f"{self.config.algo_name}: learn returned {', '.join(logs) or 'nothing'}; let it "
                "return the loss among its numbers, {'loss': ...}"
            )
        if not math.isfinite(logs["loss"]):
            raise ValueError(
                f"{self.config.algo_name}: the loss became {logs['loss']} at step {self.step}; "
                "lower the learning rate (algo.optim_params) or set train.max_grad_norm"
            )
        return self.record("train", logs)

    def _is_due(self) -> bool:
        """Say whether there is something left to learn from in this round."""
        if self._batch is None:
            self._batch = next(self._batches, None)
        return self._batch is not None

    def _num_due(self) -> int:
        """Count the updates of this round; for on-policy algorithms, 0 if there are none."""
        num = self.config.train.online.num_updates
        if self.is_early:
            return 0
        return self.num_collected if self.alg.ON_POLICY or num is None else num

    def _take_round(self) -> dict[str, Any]:
        """Take the steps of the round, processed for learning."""
        return self.alg.process_batch_for_training(self.take_rollout())

    def _make_batches(self, num: int) -> Iterator[dict[str, Any]]:
        """Make ``num`` batches, ready for updates; for on-policy algorithms, as many as these
        choose."""
        alg, size = self.alg, self.config.train.samples_per_step
        if alg.ON_POLICY and num:
            yield from alg.minibatches(self._take_round())
            return
        self.buffer.progress = min(1.0, self.step / (self.config.train.num_steps or math.inf))
        for drawn in self.buffer.batches(num, size):
            drawn["rewards"] = self.statistics.rewards(drawn["rewards"])
            parts = map_leaves(lambda x: x.split(size), alg.process_batch_for_training(drawn))
            for i in range(len(parts["actions"])):
                yield map_leaves(lambda x, i=i: x[i], parts)

    # -- going on ---------------------------------------------------------------------------------

    def state(self, with_buffer: bool = True) -> dict[str, Any]:
        """Return the state to resume from between two rounds, apart from the weights
        (``alg.serialize``) and the random state (``seeding.rng_state``)."""
        saves = with_buffer and (self.alg.ON_POLICY or self.config.train.online.replay.saved)
        return {
            "step": self.step,
            "num_epochs": self._num_epochs,
            "kept_from": self._kept_from if saves else self.step,
            **super().state(saves),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.step = self._steps_before = state["step"]
        self._kept_from, self._num_epochs = state["kept_from"], state["num_epochs"]
        super().restore(state)
        self._batch, self._batches = None, iter(())
        if state["buffer"] is None and self.step:
            if self.obs is not None:
                self.buffer.begin(self.obs)
            log.warning(
                "the checkpoint holds no steps (train.online.replay.saved): the replay begins "
                "empty, and the results differ from those of one uninterrupted run"
            )


Trainer = ActingTrainer  #: The name of its role, for scripts.


def summary_of(ended: EndedEpisodes) -> dict[str, float]:
    """Return the logs of a ``collect`` record."""
    logs: dict[str, float] = {"Episodes": len(ended)}
    if ended:
        returns, lengths, successes = np.array(ended).T
        logs |= {"Return": float(returns.mean()), "Horizon": float(lengths.mean())}
        if (successes >= 0).any():
            logs["Success_Rate"] = float((successes > 0).mean())
    return logs
