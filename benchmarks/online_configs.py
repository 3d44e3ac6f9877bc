"""What the configs of online RL reach: fills a table in docs/results.md.

    python benchmarks/online_configs.py [--only cartpole_dqn ...] [--seeds 5] [--jobs 2]

Trains each config of ``configs/online`` that is named here with several seeds, as ``train.py``
does. A training ends with a test of its best checkpoint in 50 episodes that it has not seen, whose
mean return is kept in ``benchmarks/results/online`` and not asked for again as long as the config
stays the same. All take about two hours.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import fill, markdown
from online_results import FOLDER as ANSWERS
from results import FOLDER, PAGE, ROOT, offrl
from tqdm import tqdm

from offrl.config.files import read_config_file
from offrl.training.run import git_commit

BEGIN = "<!-- configs by benchmarks/online_configs.py -->\n"
CARTPOLE, PENDULUM = 475, -200  # what counts as solved
CONFIGS = {
    "cartpole_dqn": CARTPOLE,
    "cartpole_ppo": CARTPOLE,
    "cartpole_a2c": CARTPOLE,
    "cartpole_impala": CARTPOLE,
    "pendulum_sac": PENDULUM,
    "pendulum_td3": PENDULUM,
    "pendulum_ddpg": PENDULUM,
}


@dataclass(frozen=True)
class Job:
    config: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.config}-{self.seed}"

    @property
    def answer(self) -> Path:
        return ANSWERS / f"{self.name}.json"

    @property
    def question(self) -> dict[str, Any]:
        """What the answer is of."""
        return read_config_file(ROOT / "configs" / "online" / f"{self.config}.json")

    @property
    def is_answered(self) -> bool:
        return self.answer.exists() and json.loads(self.answer.read_text())["of"] == self.question

    def run(self) -> None:
        """Train, and write the answer."""
        question, started = self.question, time.time()
        runs = FOLDER / "runs" / f"{self.name}-{time.time_ns()}"
        config = str(ROOT / "configs" / "online" / f"{self.config}.json")
        output = ("--output", str(runs.parent), "--name", runs.name)
        offrl(self.name, "train", "--config", config, "--seed", str(self.seed), *output)
        (metrics,) = runs.glob("*/metrics.jsonl")
        records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        answer = {
            "of": question,
            "git_commit": git_commit(),
            "minutes": (time.time() - started) / 60,
            "test": next(record["logs"] for record in records if record["type"] == "test"),
        }
        partial = self.answer.with_suffix(".partial")
        partial.write_text(json.dumps(answer, indent=4) + "\n", encoding="utf-8")
        partial.replace(self.answer)


def table() -> str:
    rows = []
    for config, solved in CONFIGS.items():
        jobs = [Job(config, seed) for seed in range(1, 10)]
        answers = [json.loads(job.answer.read_text()) for job in jobs if job.is_answered]
        if answers:
            returns = sorted(answer["test"]["Return"] for answer in answers)
            minutes = sorted(answer["minutes"] for answer in answers)
            rows.append(
                [
                    f"`online/{config}.json`",
                    f"{answers[0]['of']['train']['num_steps']}",
                    f"{solved}",
                    ", ".join(f"{x:.0f}" for x in returns),
                    f"{minutes[len(minutes) // 2]:.1f}",
                ]
            )
    return markdown(["config", "steps", "solved at", "its seeds' returns", "minutes"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds of each config, 9 at most")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    for folder in (FOLDER, ANSWERS):
        folder.mkdir(exist_ok=True)
    everything = [Job(name, seed) for seed in range(1, 1 + args.seeds) for name in args.only]
    failed, todo = [], [job for job in everything if not job.is_answered]
    with ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(job.run): job for job in todo}
        for done in tqdm(as_completed(running), total=len(todo), unit="run"):
            if done.exception():
                failed.append(running[done].name)
                tqdm.write(f"{failed[-1]}: {done.exception()}; see {FOLDER / failed[-1]}.log")
    fill(PAGE, BEGIN, table())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
