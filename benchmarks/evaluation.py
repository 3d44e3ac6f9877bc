"""Evaluation speed: the same episodes of the dataset's environment with one worker and with two.

    python benchmarks/evaluation.py [--episodes 50] [--repeats 3]

A BC policy, trained here for some seconds, acts in the parent process, as in any evaluation. The
workers are started and warmed up before anything is timed. Both numbers of workers take turns, and
the figure is the median over the turns of the ratio within a turn. Their results must be equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

from measure import alternate, machine, markdown, ratio, timed
from tqdm import tqdm

from offrl import RolloutPolicy, config_factory
from offrl.config.files import find_file, read_config_file
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation.evaluate import TEST_SEEDS, evaluate
from offrl.training import Trainer

TRAINING_STEPS = 2000
WORKERS = (1, 2)


def trained() -> Trainer:
    config = config_factory("bc", read_config_file(find_file("bc.json", "configs")))
    config.experiment.validate = False
    config.experiment.epoch_every_n_steps = Trainer.PROGRESS_EVERY
    config.train.num_epochs = TRAINING_STEPS // Trainer.PROGRESS_EVERY
    trainer = Trainer(config)
    for _ in tqdm(trainer(), desc="training", unit=" records", leave=False, disable=None):
        pass
    return trainer


class Evaluation:
    """The same episodes again and again in one pool of workers."""

    def __init__(self, trainer: Trainer, pool: EnvPool, episodes: int):
        self.policy, self.pool = RolloutPolicy(trainer.algo), pool
        horizon = trainer.config.experiment.rollout.horizon
        self.requests = [EpisodeRequest(TEST_SEEDS + i, horizon) for i in range(episodes)]
        self.outcomes: dict[int, tuple[bool, float, int]] = {}
        # As many episodes as the most workers, so that every worker builds its simulator.
        list(evaluate(self.policy, pool, self.requests[: max(WORKERS)]))

    def __call__(self) -> None:
        results = list(evaluate(self.policy, self.pool, self.requests))
        crashed = [r for r in results if r.error]
        if crashed:
            raise SystemExit(f"seed {crashed[0].request.seed} crashed: {crashed[0].error}")
        outcomes = {r.request.seed: (r.success, r.total_reward, r.length) for r in results}
        if self.outcomes and outcomes != self.outcomes:
            raise SystemExit(f"{self.pool.num_workers} workers: another result in a later turn")
        self.outcomes = outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=50, help="episodes per turn")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each number of workers")
    args = parser.parse_args()

    trainer = trained()
    with ExitStack() as stack:
        evaluations = {}
        for number in WORKERS:
            pool = stack.enter_context(EnvPool(trainer.env_args or {}, num_workers=number))
            evaluations[number] = Evaluation(trainer, pool, args.episodes)
        contestants: dict[str, Callable[[], float]] = {
            str(number): timed(evaluation) for number, evaluation in evaluations.items()
        }
        seconds = alternate(contestants, args.repeats, warm_up=False)

    one, two = (evaluations[number].outcomes for number in WORKERS)
    different = [seed for seed in one if one[seed] != two[seed]]
    if different:
        raise SystemExit(f"one and two workers differ in the episodes of the seeds {different}")
    successes = sum(success for success, _, _ in one.values())
    steps = sum(length for _, _, length in one.values())
    print(f"{machine()}; {args.repeats} turns\n")
    print(f"{args.episodes} episodes, {steps} steps, {successes} successes, the same for both\n")
    faster = f"{ratio(seconds['1'], seconds['2']):.2f} times one worker"
    rows = [["1", f"{median(seconds['1']):.1f}", ""], ["2", f"{median(seconds['2']):.1f}", faster]]
    print(markdown(["workers", "seconds", "speed"], rows))


if __name__ == "__main__":
    main()
