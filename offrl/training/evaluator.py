"""Measures success rates, and proxies without an environment, during training."""

import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from offrl import cluster, evaluation, parallel
from offrl.acting.policy import RolloutPolicy
from offrl.algos import PlannerAlgo
from offrl.envs.rendering import INSTALL_HINT, needed_backend, renders_observations, working_backend
from offrl.envs.workers import EnvPool, EpisodeRequest, EpisodeResult, pools
from offrl.evaluation.proxies import check_measurable, proxies
from offrl.seeding import preserved_rng
from offrl.training.background import Background
from offrl.training.loop import Record, Training
from offrl.training.recorded import Trainer
from offrl.video import write_video

log = logging.getLogger(__name__)


class Evaluator:
    """Evaluates the policy in the simulator every ``experiment.rollout.rate`` epochs and in the
    last one. It inserts an ``episode`` record per episode and one ``rollout`` record before the
    ``epoch`` record; with several environments also an ``env_rollout`` record for each.

    The episodes have the same seeds every time, and evaluation does not affect the training. With
    ``in_background`` the training goes on during all evaluations but the last. Their records come
    before a later ``epoch`` record, with the epoch and step of the policy that was evaluated.
    """

    WAIT_S = 0.5  # seconds of waiting before a look at requests to save

    def __init__(self, trainer: Training):
        self.trainer = trainer
        self.config = trainer.config.experiment.rollout
        self.video: Path | None = None  # the last one written
        films = trainer.config.experiment.render_video
        self._num_filmed = self.config.video_episodes if films else 0
        self.no_video = "no evaluation (experiment.rollout.enabled is false)"
        self._pools: dict[str, EnvPool] = {}
        self._background: Background | None = None
        self._until_closed = ExitStack()
        if self.config.enabled and isinstance(trainer.algo, PlannerAlgo):
            self.no_video = f"no evaluation ({trainer.config.algo_name} takes no actions)"
            log.info(self.no_video)
        elif self.config.enabled:
            try:
                self._check_background()
                self._pools = self._make_pools()
            except ValueError as error:
                raise ValueError(
                    f"{error}; correct this, or train with experiment.rollout.enabled=false"
                ) from None

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        if self.trainer.evaluating is not None:  # an earlier process, or loop, was left
            self._begin()
        for record in records:
            if record["type"] == "epoch":
                yield from self._before(record)
            yield record
        if self.trainer.evaluating is not None:  # where a training was made shorter
            yield from self._finished(waits=True)
            self.trainer.drop_copy()

    def _before(self, record: Record) -> Iterator[Record]:
        """Yield the records of evaluations that come before an ``epoch`` record."""
        trainer, ended = self.trainer, False
        is_round = trainer.is_last or record["epoch"] % self.config.rate == 0
        is_due = is_round and record["epoch"] > self.config.warmstart and bool(self._pools)
        stays_behind = is_due and self.config.in_background and not trainer.is_last
        with trainer.holding(record):
            if trainer.evaluating is not None:
                ended = yield from self._finished(waits=is_due or trainer.is_last)
            if is_due and not stays_behind:
                if self._background is not None:
                    self._background.close()  # frees its simulators before others run
                yield from self.evaluate(trainer.algo)
        if ended:  # an interrupt before this repeats both
            trainer.drop_copy()
        if stays_behind:
            trainer.keep_copy()
            self._begin()

    def evaluate(
        self, algo: Any, kind: str = "rollout", first_seed: int = evaluation.SELECTION_SEEDS
    ) -> Iterator[Record]:
        """Run the episodes. Yields ``episode`` records, then one of type ``kind``."""
        requests = self._requests(first_seed)

        def play(name: str) -> Iterator[EpisodeResult]:
            pool = self._pools[name]
            own = parallel.share(requests[name])
            return parallel.gathered(evaluation.evaluate(self._policy(algo, pool), pool, own))

        now = {"epoch": self.trainer.epoch, "step": self.trainer.step}
        yield from self._records(kind, play, now)

    def _requests(self, first_seed: int) -> dict[str, list[EpisodeRequest]]:
        frame_every = self.trainer.config.experiment.video_skip
        filmed = {n: self._num_filmed if p.gl_backend else 0 for n, p in self._pools.items()}
        return {
            name: evaluation.requests_of(self.config, first_seed, num_filmed, frame_every)
            for name, num_filmed in filmed.items()
        }

    def _records(
        self, kind: str, play: Callable[[str], Iterable[EpisodeResult]], at: dict[str, int]
    ) -> Iterator[Record]:
        """Yield the records of an evaluation of the policy ``at`` an epoch and a step."""
        everything: list[EpisodeResult] = []
        is_rated = True
        episode = "episode" if kind == "rollout" else f"{kind}_episode"
        for name, pool in self._pools.items():
            results: list[EpisodeResult] = []
            for result in self.trainer.interrupts.promptly(play(name)):
                results.append(result)
                yield self.trainer.record(episode, _describe(result)) | at
            _report_lost(kind, name, results)
            if len(self._pools) == 1:
                self._write_video(kind, results, at["epoch"])
            else:
                self._write_video(kind + re.sub(r"[^\w.-]", "_", f"_{name}"), results, at["epoch"])
                pool.close()  # frees its simulators before the others run
                logs = evaluation.summarize(results)
                yield self.trainer.record(f"env_{kind}", logs) | at | {"env": name}
                is_rated = is_rated and ("Success_Rate" in logs or not logs["n"])
            everything += results
        logs = evaluation.summarize(everything)  # only numbers that all environments have
        rated = {name: x for name, x in logs.items() if is_rated or "Success" not in name}
        yield self.trainer.record(kind, rated) | at

    def _begin(self) -> None:
        """Begin to evaluate the copy that the training has kept."""
        copy = self.trainer.evaluating
        assert copy is not None
        if self._background is None:  # evaluations were switched off meanwhile
            log.warning(
                "experiment.rollout.enabled: false, so that the evaluation of epoch "
                f"{copy['epoch']}, which was under way, is left out"
            )
            self.trainer.drop_copy()
        else:
            requests = self._requests(evaluation.SELECTION_SEEDS)
            self._background.begin(self.trainer.run.evaluated, requests)

    def _finished(self, waits: bool) -> Generator[Record, None, bool]:
        """Yield the records of the evaluation in the background if it has ended, or ``waits`` for
        it. Returns whether it has ended."""
        copy, background = self.trainer.evaluating, self._background
        assert copy is not None and background is not None
        while True:
            with self.trainer.interrupts.at_once():
                results = background.results(self.WAIT_S if waits else 0)
            if results is not None:
                yield from self._records("rollout", results.__getitem__, copy)
                return True
            if not waits:
                return False
            if self.trainer.interrupts.saves:
                yield self.trainer.record("progress", {})

    def test(self, algo: Any, kind: str = "test") -> Iterator[Record]:
        """Run the final test, on initial states that were not used to choose a checkpoint."""
        if self._pools:
            algo.set_eval()  # with averaged weights, if any
            parallel.take_over(algo.nets.state_dict().values())
            yield from self.evaluate(algo, kind, first_seed=evaluation.TEST_SEEDS)

    def close(self) -> None:
        """End the simulators' processes."""
        self._until_closed.close()
        if self._background is not None:
            self._background.close()

    @property
    def _uses_background(self) -> bool:
        """Say whether an evaluation is in the background, or is to be repeated there."""
        return self.config.in_background or self.trainer.evaluating is not None

    def _check_background(self) -> None:
        other = "torchrun" if parallel.num_ranks() > 1 else ""
        other = "experiment.rollout.backend=ray" if self.config.backend == "ray" else other
        if other and self._uses_background:
            remedy = "set it to false"
            if not self.config.in_background:
                remedy = "an evaluation of this run is under way there: first go on without"
            raise ValueError(f"experiment.rollout.in_background: not with {other}; {remedy}")

    def _make_pools(self) -> dict[str, EnvPool]:
        environments = self.trainer.environments
        if not environments:
            raise ValueError(
                f"{self.trainer.data.hdf5_path}: names no environment (env_args) to evaluate in, "
                "or train.data says not to (eval); set experiment.env to one of gymnasium's"
            )
        backend, self.no_video = None, "experiment.render_video is false"
        if any(map(renders_observations, environments.values())):
            backend = needed_backend("the policy sees images")
        elif self._num_filmed and (backend := working_backend()) is None:
            self._go_without_video(f"no rendering back end works here; {INSTALL_HINT}")
        on_ray, address = self.config.backend == "ray", self.trainer.config.distributed.address
        if on_ray and address is None:
            raise ValueError(
                "experiment.rollout.backend: ray, but distributed.address names none; set it to "
                "local, auto or HOST:PORT"
            )
        with ExitStack() as unless_they_fit:
            make = unless_they_fit.enter_context(pools(address if on_ray else None))
            num = self._num_workers(len(environments))
            made = {
                name: unless_they_fit.enter_context(make(env, num, self.config.timeout, backend))
                for name, env in environments.items()
            }
            if self._uses_background:
                instructions = {name: self._instruction(pool) for name, pool in made.items()}
                device = self.trainer.device
                self._background = Background(made, self.config, instructions, device)
            for pool in made.values():
                policy = self._policy(self.trainer.algo, pool)
                goes_on = len(made) == 1 and not self._uses_background
                pool.check(policy, self.config.n if goes_on else 1)
                if self._uses_background:
                    pool.close()  # until the last evaluation
            self._until_closed = unless_they_fit.pop_all()
        return made

    def _num_workers(self, num_pools: int) -> int:
        """Return the number of workers for each pool; on Ray they run beside the explorers."""
        if self.config.backend == "processes":
            return self.config.num_workers or parallel.num_cores()
        explorers, num_cpus = self.trainer.config.distributed.explorers, cluster.num_cpus()
        free = (num_cpus - explorers) // num_pools
        if free < 1:
            raise ValueError(
                f"distributed.explorers: {explorers} leave none of Ray's {num_cpus} CPUs for the "
                f"{num_pools} evaluations; use fewer, or experiment.rollout.backend=processes"
            )
        return min(self.config.num_workers or free, free)

    def _instruction(self, pool: EnvPool) -> Any:
        return self.trainer.instructions.get(pool.env_args.get("lang", ""))

    def _policy(self, algo: Any, pool: EnvPool) -> RolloutPolicy:
        policy = RolloutPolicy(algo, instruction=self._instruction(pool))
        return evaluation.with_latency(policy, self.config, pool.env_args)

    def _write_video(self, kind: str, results: Sequence[EpisodeResult], epoch: int) -> None:
        if kind.startswith("rollout") and self.trainer.config.experiment.keep_all_videos:
            kind = kind.replace("rollout", f"epoch_{epoch}", 1)
        problem = next((r.no_video for r in results if r.no_video), None)
        if problem is None and (frames := evaluation.video_frames(results)):
            path = self.trainer.run.video(kind)
            try:
                write_video(path, frames)
                self.video = path
            except Exception as error:  # a failed video must not end a training
                problem = f"{path} could not be written ({error})"
        if problem is not None:
            self._go_without_video(problem)

    def _go_without_video(self, why: str) -> None:
        self.no_video = why
        log.warning("no video: %s", why)


def _report_lost(kind: str, name: str, results: Sequence[EpisodeResult]) -> None:
    lost = [r for r in results if r.error]
    if lost:
        chooses = "it chooses no checkpoint" if kind == "rollout" else "offrl rollout repeats it"
        log.warning(
            f"the evaluation ({kind}) in {name} failed: {len(lost)} of {len(results)} episodes "
            f"could not be run, the first with seed {lost[0].request.seed}: {lost[0].error}; "
            f"{chooses}. Mend the simulator, or use fewer experiment.rollout.num_workers (memory)"
        )


def _describe(result: EpisodeResult) -> dict[str, Any]:
    success = {} if result.success is None else {"Success": float(result.success)}
    return {
        "Seed": result.request.seed,
        **success,
        "Return": result.total_reward,
        "Horizon": result.length,
        "Crashed": float(result.error is not None),
    }


class Proxies:
    """Measures the policy without an environment every ``experiment.proxies.rate`` epochs and in
    the last one. It inserts a ``proxy`` record before the ``epoch`` record.

    It uses the held-out demonstrations if there are any (``experiment.validate``), else those of
    the training, and does not affect the training.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.config = trainer.config.experiment.proxies
        if self.config.enabled:
            check_measurable(trainer.algo, self.config.fqe_steps)
            data = held_out = trainer.dataset.single_steps()
            if trainer.valid_loader is not None:
                held_out = trainer.valid_loader.dataset.single_steps()
            self._data = data, held_out

    def __call__(self, records: Iterable[Record]) -> Iterator[Record]:
        steps, seed = self.config.fqe_steps, self.trainer.config.train.seed
        for record in records:
            is_due = self.trainer.is_last or record["epoch"] % self.config.rate == 0
            if self.config.enabled and record["type"] == "epoch" and is_due:
                with self.trainer.holding(record):
                    with preserved_rng(), self.trainer.interrupts.at_once():
                        logs = proxies(self.trainer.algo, *self._data, steps, seed)
                    yield self.trainer.record("proxy", logs)
            yield record
