"""What each algorithm reaches on data of mixed quality: fills the tables in docs/results.md.

    python benchmarks/results.py [--jobs 2] [--only lift-iql ...]

Trains the configs in ``configs/`` on Lift and on a task of Meta-World, one process per core, each
of one thread; measures the best and the last checkpoint on initial states that chose neither. The
answers are kept in ``benchmarks/results`` and not asked for again as long as their configs stay the
same; a run that was interrupted goes on from ``benchmarks/.results``. Takes some hours. Needs the
extra ``metaworld``. ``make drawings`` then draws the picture on the page.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

from measure import fill, markdown
from tqdm import tqdm

from offrl.config.files import read_config_file
from offrl.intervals import wilson_interval
from offrl.training.run import git_commit

ROOT = Path(__file__).parents[1]
FOLDER, ANSWERS = ROOT / "benchmarks" / ".results", ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "results.md"
BEGIN = "<!-- {} by benchmarks/results.py -->\n"
EPOCHS, STEPS, HORIZON = 20, 500, 150
COMMON = {
    "experiment.validate": False,
    "experiment.render_video": False,
    "experiment.epoch_every_n_steps": STEPS,
    "train.num_epochs": EPOCHS,
    "train.hdf5_filter_key": "train",
}
CLONING = {"train.batch_size": 256, "algo.actor_layer_dims": [256, 256]}
HIERARCHY = {"algo.actor.actor_layer_dims": [256, 256]}
GC_IQL = {
    "train.goal_mode": "mixture",
    "train.goal_shares": {"current": 0.1, "future": 0.9, "random": 0.0},
    "train.goal_rewards": True,
    "algo.adv.beta": 3.0,
}
MIXED, PUSHES = ROOT / "datasets" / "lift" / "mixed.hdf5", FOLDER / "metaworld.hdf5"
COLLECT = (
    *("--type", "metaworld", "--env", "push-v3", "--n", "150", "--horizon", str(HORIZON)),
    *("--noise", "0.3", "0.6", "1.2", "--keep-failures"),
)


@dataclass(frozen=True)
class Task:
    """``top_share`` is about how much of the data succeeds; ``collect`` are arguments of ``offrl
    collect``, for data that does not ship."""

    part: str  # of the page
    title: str
    data: Path
    algorithms: tuple[str, ...]
    settings: dict[str, Any]
    seeds: dict[str, int]  # how many, of those algorithms that get more than one
    rate: int = 10  # epochs between checkpoints
    episodes: int = 25
    top_share: float | None = None
    collect: tuple[str, ...] = ()


# What is said of an algorithm, its config, and what is different from that.
ALGORITHMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bc": ("BC", "bc", CLONING),
    "filtered_bc": ("filtered BC", "bc", CLONING),
    "bcq": ("BCQ", "bcq", {}),
    "plas": ("PLAS", "plas", {}),
    "cql": ("CQL", "cql", {}),
    "cal_ql": ("Cal-QL", "cal_ql", {}),
    "sac_n": ("SAC-N", "sac_n", {}),
    "edac": ("EDAC", "edac", {}),
    "td3_bc": ("TD3+BC", "td3_bc", {}),
    "rebrac": ("ReBRAC", "rebrac", {}),
    "iql": ("IQL", "iql", {}),
    "xql": ("XQL", "xql", {}),
    "awac": ("AWAC", "awac", {}),
    "crr": ("CRR", "crr", {}),
    "dt": ("Decision Transformer", "dt", {}),
    "hbc": ("HBC", "hbc", HIERARCHY),
    "iris": ("IRIS", "iris", HIERARCHY),
    "gcbc": ("GCBC", "bc", CLONING | {"train.goal_mode": "future_uniform"}),
    "gc_iql": ("GC-IQL", "iql", GC_IQL),
    "hiql": ("HIQL", "hiql", {"algo.subgoal_steps": 15}),
}
OFFLINE_RL = tuple(ALGORITHMS)[: list(ALGORITHMS).index("hbc")]
HIERARCHIES, GOALS = ("bc", "hbc", "iris"), ("gcbc", "gc_iql", "hiql")
SEVERAL = dict.fromkeys(("bc", "filtered_bc", "iql", "cql", "td3_bc", "awac", "rebrac"), 3)
TASKS = {
    "lift": Task("rewards", "Lift", MIXED, OFFLINE_RL, {}, {}, top_share=0.1),
    "metaworld": Task(
        "rewards",
        "Meta-World push-v3",
        PUSHES,
        OFFLINE_RL,
        {"observation.modalities.obs.low_dim": ["flat"]},
        SEVERAL,
        top_share=0.35,
        collect=COLLECT,
    ),
    "hierarchies": Task(
        "hierarchies",
        "Hierarchies on Lift",
        MIXED,
        HIERARCHIES,
        {},
        dict.fromkeys(HIERARCHIES, 3),
        rate=4,
        episodes=50,
    ),
    "goals": Task(
        "goals",
        "Goals on Meta-World push-v3",
        PUSHES,
        GOALS,
        {
            "observation.modalities.obs.low_dim": ["state"],
            "observation.modalities.goal.low_dim": ["state"],
        },
        dict.fromkeys(GOALS, 3),
        episodes=50,
        collect=COLLECT,
    ),
}


@dataclass(frozen=True)
class Job:
    task: str
    algorithm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task}-{self.algorithm}-{self.seed}"

    @property
    def answer(self) -> Path:
        return ANSWERS / f"{self.name}.json"

    @property
    def config(self) -> str:
        return f"{ALGORITHMS[self.algorithm][1]}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What is different from the config."""
        task = TASKS[self.task]
        data: dict[str, Any] = {"path": str(task.data.relative_to(ROOT))}
        if self.algorithm == "filtered_bc":
            data["top_share"] = task.top_share
        settings = COMMON | {
            "experiment.rollout": {
                "n": task.episodes,
                "horizon": HORIZON,
                "rate": task.rate,
                "num_workers": 1,
            },
            "train.data": [data],
        }
        return settings | task.settings | ALGORITHMS[self.algorithm][2]

    @property
    def question(self) -> dict[str, Any]:
        """What the answer is of."""
        return {"config": read_config_file(ROOT / "configs" / self.config)} | self.settings

    @property
    def is_answered(self) -> bool:
        return self.answer.exists() and json.loads(self.answer.read_text())["of"] == self.question

    def run(self) -> None:
        """Train, measure, write the answer."""
        question = self.question  # the configs may change meanwhile
        run_folder = self._train(question)
        last = run_folder / "last.json"
        if not last.exists():
            checkpoint = str(run_folder / "last.pth")
            measured = ["--n", str(TASKS[self.task].episodes), "--workers", "1"]
            measured += ["--json", str(last)]
            offrl(self.name, "rollout", "--checkpoint", checkpoint, *measured)
        with open(run_folder / "metrics.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        best = next(r["logs"] for r in records if r["type"] == "test")
        seconds = median(r["logs"]["Train_Time"] for r in records if r["type"] == "epoch")
        answer = {
            "of": question,
            "git_commit": git_commit(),
            "best": best,
            "last": json.loads(last.read_text()),
            "seconds_per_1000_steps": 1000 * seconds / STEPS,
        }
        partial = self.answer.with_suffix(".partial")
        partial.write_text(json.dumps(answer, indent=4) + "\n", encoding="utf-8")
        partial.replace(self.answer)

    def _train(self, question: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(question).encode()).hexdigest()[:8]
        runs = FOLDER / "runs" / f"{self.name}-{digest}"  # not those of another question
        earlier = [path.parent for path in sorted(runs.glob("*/last.pth"))]
        if earlier:
            if '"type": "test"' not in (earlier[-1] / "metrics.jsonl").read_text():
                offrl(self.name, "train", "--resume", str(earlier[-1]))
            return earlier[-1]
        sets = (("--set", f"{key}={json.dumps(value)}") for key, value in self.settings.items())
        output = ("--output", str(runs.parent), "--name", runs.name, "--seed", str(self.seed))
        offrl(self.name, "train", "--config", self.config, *output, *chain(*sets))
        return next(iter(sorted(runs.glob("*/last.pth")))).parent


def offrl(name: str, *arguments: str) -> None:
    """Call the program, whose output goes to ``NAME.log``."""
    with open(FOLDER / f"{name}.log", "a", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, "-m", "offrl", *arguments],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
            check=True,
        )


def jobs(only: list[str]) -> list[Job]:
    """The first seeds come first, tasks in turn."""
    everything = [
        Job(task, algorithm, seed)
        for seed in range(1, 1 + max(SEVERAL.values()))
        for algorithm in ALGORITHMS
        for task, settings in TASKS.items()
        if algorithm in settings.algorithms and seed <= settings.seeds.get(algorithm, 1)
    ]
    return [job for job in everything if not only or any(part in job.name for part in only)]


def collect() -> None:
    for task in TASKS.values():
        if task.collect and not task.data.exists():
            command = [sys.executable, "-m", "offrl", "collect", *task.collect]
            subprocess.run([*command, "--output", str(task.data)], cwd=ROOT, check=True)


# -- what is made of the answers ------------------------------------------------------------------


def pooled(answers: list[dict[str, Any]], checkpoint: str) -> tuple[float, float, float, int]:
    """Success rate, the ends of its 95 % interval and n, over the episodes of all seeds."""
    n = sum(int(a[checkpoint]["n"]) for a in answers)
    successes = sum(round(a[checkpoint]["n"] * a[checkpoint]["Success_Rate"]) for a in answers)
    return successes / n, *wilson_interval(successes, n), n


def answers_of(task: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for job in jobs([]):
        if job.task == task and job.is_answered:
            found.setdefault(job.algorithm, []).append(json.loads(job.answer.read_text()))
    return found


def table(task: str) -> str:
    rows = []
    for algorithm, answers in answers_of(task).items():
        rates = [pooled(answers, checkpoint) for checkpoint in ("best", "last")]
        rows.append(
            [
                ALGORITHMS[algorithm][0],
                *(f"{rate:.2f} ({low:.2f} to {high:.2f})" for rate, low, high, _ in rates),
                f"{rates[0][3]}",
                f"{mean(a['seconds_per_1000_steps'] for a in answers):.1f}",
            ]
        )
    header = ["algorithm", "best checkpoint", "last", "n", "s per 1000 steps"]
    return f"### {TASKS[task].title}\n" + markdown(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of runs")
    args = parser.parse_args()
    for folder in (FOLDER, ANSWERS):
        folder.mkdir(exist_ok=True)
    collect()
    todo = [job for job in jobs(args.only) if not job.is_answered]
    failed = []
    with ThreadPoolExecutor(args.jobs) as pool:
        running = {pool.submit(job.run): job for job in todo}
        for done in tqdm(as_completed(running), total=len(todo), unit="run"):
            job = running[done]
            if done.exception():
                failed.append(job.name)
                tqdm.write(f"{job.name}: {done.exception()}; see {FOLDER / job.name}.log")
    for part in dict.fromkeys(task.part for task in TASKS.values()):
        write_tables(part)
    return 1 if failed else 0


def write_tables(part: str) -> None:
    fill(
        PAGE,
        BEGIN.format(part),
        "\n".join(table(name) for name, task in TASKS.items() if task.part == part),
    )


if __name__ == "__main__":
    sys.exit(main())
