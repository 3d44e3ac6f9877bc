"""What acting adds to offline training: fills the table of fine-tuning in docs/results.md.

    python benchmarks/finetune.py [--jobs 2] [--only lift-residual ...]

Trains IQL on noisy demonstrations of robosuite's Lift and of Meta-World's drawer-open-v3, lets it
act and learn in two ways, and tests what there was before and after on the same 100 initial states.
The answers are kept in ``benchmarks/results``, as those of ``results.py``. Takes half an hour.
Needs the extra ``metaworld``. ``make drawings`` then draws the picture on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from measure import fill, markdown
from results import ANSWERS, BEGIN, FOLDER, PAGE, ROOT, offrl

from offrl.config.files import read_config_file
from offrl.training.run import git_commit

PART, EPISODES = "finetuning", 100
OFFLINE, ONLINE = "iql.json", "finetune.json"
DRAWER = FOLDER / "drawer_noisy.hdf5"
COLLECT = (
    *("--type", "metaworld", "--env", "drawer-open-v3", "--n", "40", "--horizon", "150"),
    *("--noise", "0.6", "1.2", "2.0", "--keep-failures", "--output", str(DRAWER)),
)
# The offline training of each task, where it differs from the config that ships.
TASKS: dict[str, dict[str, Any]] = {
    "lift": {},
    "drawer": {
        "experiment.rollout.horizon": 150,
        "train.data": str(DRAWER.relative_to(ROOT)),
        "train.hdf5_filter_key": None,
        "experiment.validate": False,
        "observation.modalities.obs.low_dim": ["flat"],
    },
}
TITLES = {
    "lift": "Lift",
    "drawer": "drawer-open-v3",
    "iql": "IQL goes on",
    "residual": "residual",
}
CORRECTION = {"algo_name": "residual", "train.num_steps": 15000, "train.rewards.scale": 10}
# How it acts and learns then. Something of the reward at the end must be left at the beginning of
# an episode: after 35 steps on Lift, 140 with the drawer, where larger corrections are needed.
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "lift": {
        "iql": {"train.num_steps": 15000},
        "residual": CORRECTION | {"algo.discount": 0.97},
    },
    "drawer": {
        "iql": {"train.num_steps": 15000},
        "residual": CORRECTION
        | {"algo.scale": 0.4, "algo.critic.ensemble.n": 2, "train.online.num_updates": 2},
    },
}


@dataclass(frozen=True)
class Learner:
    """A way to go on from the offline policy of a task."""

    task: str
    way: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.way}"

    @property
    def answer(self) -> Path:
        return ANSWERS / f"{PART}-{self.name}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What is different from the online config that ships."""
        return WAYS[self.task][self.way]

    @property
    def question(self) -> dict[str, Any]:
        """What the answer is of."""
        offline, online = (read_config_file(ROOT / "configs" / x) for x in (OFFLINE, ONLINE))
        return {"offline": offline | TASKS[self.task], "online": online | self.settings}

    @cached_property
    def found(self) -> dict[str, Any] | None:
        """The answer, if there is one to the present question."""
        if not self.answer.exists():
            return None
        found = json.loads(self.answer.read_text())
        return found if found["of"] == self.question else None

    def run(self, offline: Path, before: dict[str, Any]) -> None:
        """Act and learn, test, write the answer.

        offline: the run of the task's policy.
        before: what that reaches.
        """
        started = time.time()
        start = {"experiment.ckpt_path": str(offline / "last.pth")}
        online = train(self.name, ONLINE, self.settings | start)
        minutes = (time.time() - started) / 60
        with open(online / "metrics.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        curve = [{"step": r["step"], **r["logs"]} for r in records if r["type"] == "rollout"]
        answer = {
            "of": self.question,
            "git_commit": git_commit(),
            "offline": before,
            "online": test(online),
            "steps": records[-1]["step"],
            "minutes": minutes,
            "curve": curve,
        }
        self.answer.write_text(json.dumps(answer, indent=4) + "\n", encoding="utf-8")


LEARNERS = [Learner(task, way) for task in TASKS for way in WAYS[task]]


def run_task(task: str, todo: list[Learner]) -> None:
    """Train offline once, and go on from there in each way that has no answer."""
    offline = train(f"{task}-offline", OFFLINE, TASKS[task])
    before = test(offline)
    for learner in todo:
        learner.run(offline, before)


def train(name: str, config: str, settings: dict[str, Any]) -> Path:
    """The run folder of a whole training."""
    sets = (("--set", f"{key}={json.dumps(value)}") for key, value in settings.items())
    output = ("--output", str(FOLDER / "runs"), "--name", f"{PART}-{name}")
    offrl(
        f"{PART}-{name}",
        "train",
        "--config",
        str(ROOT / "configs" / config),
        *output,
        *chain(*sets),
    )
    return sorted((FOLDER / "runs" / f"{PART}-{name}").glob("*/last.pth"))[-1].parent


def test(run: Path) -> dict[str, Any]:
    """What the last checkpoint reaches."""
    answer = run / "test.json"
    measured = ("--n", str(EPISODES), "--workers", "1", "--json", str(answer))
    offrl(run.parent.name, "rollout", "--checkpoint", str(run / "last.pth"), *measured)
    return json.loads(answer.read_text())


def said(measured: dict[str, Any]) -> str:
    rate, low, high = (
        measured[k] for k in ("Success_Rate", "Success_Rate_Low", "Success_Rate_High")
    )
    return f"{rate:.2f} ({low:.2f} to {high:.2f})"


def table() -> str:
    rows = [
        [
            TITLES[learner.task],
            TITLES[learner.way],
            said(found["offline"]),
            said(found["online"]),
            f"{found['steps']}",
            f"{found['minutes']:.0f}",
        ]
        for learner in LEARNERS
        if (found := learner.found) is not None
    ]
    columns = ["task", "then", "offline", "after acting", "steps", "minutes"]
    return markdown(columns, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", default=[], help="names, such as lift-residual")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if not DRAWER.exists():
        offrl(f"{PART}-data", "collect", *COLLECT)
    todo = [x for x in LEARNERS if x.found is None and (not args.only or x.name in args.only)]
    by_task = {task: [x for x in todo if x.task == task] for task in TASKS}
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run_task, *zip(*[x for x in by_task.items() if x[1]], strict=True)))
    fill(PAGE, BEGIN.format(PART), table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
