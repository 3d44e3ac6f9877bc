"""What acting adds to offline training: fills the table of fine-tuning in docs/results.md.

    python benchmarks/finetune.py [--jobs 2] [--only td3_bc ...]

Trains policies on 30 noisy demonstrations of Meta-World's push-v3, lets them act and learn, and
tests both on the same 100 initial states. The answers are kept in ``benchmarks/results``, as those
of ``results.py``. Takes about an hour. Needs the extra ``metaworld``. ``make drawings`` then draws
the picture on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from measure import markdown
from results import ANSWERS, BEGIN, FOLDER, ROOT, fill, offrl

from offrl.config.files import read_config_file
from offrl.training.run import git_commit

PART, EPISODES, HORIZON = "finetuning", 100, 150
DATA = FOLDER / "push_few.hdf5"
COLLECT = (
    *("--type", "metaworld", "--env", "push-v3", "--n", "30", "--horizon", str(HORIZON)),
    *("--noise", "0.3", "0.6", "1.2", "--keep-failures", "--output", str(DATA)),
)
COMMON = {
    "experiment.render_video": False,
    "experiment.rollout": {"n": 50, "horizon": HORIZON, "rate": 5, "num_workers": 1},
}
OFFLINE = COMMON | {
    "experiment.validate": False,
    "experiment.rollout": COMMON["experiment.rollout"] | {"rate": 20},
    "train.num_epochs": 20,
    "train.data": str(DATA.relative_to(ROOT)),
    "train.hdf5_filter_key": None,
    "observation.modalities.obs.low_dim": ["flat"],
}
CLONING = {
    "train.batch_size": 256,
    "algo.actor_layer_dims": [256, 256],
    "experiment.epoch_every_n_steps": 250,
}
ONLINE = COMMON | {"train.online.horizon": HORIZON}


@dataclass(frozen=True)
class Learner:
    """A config to train offline, if any, and one to act with, and what is different from them."""

    name: str
    title: str
    config: str
    settings: dict[str, Any]
    offline: str | None = None
    offline_settings: dict[str, Any] = field(default_factory=dict)

    @property
    def answer(self) -> Path:
        return ANSWERS / f"{PART}-{self.name}.json"

    @property
    def question(self) -> dict[str, Any]:
        """What the answer is of."""
        online = read_config_file(ROOT / "configs" / self.config)
        question = {"online": online | ONLINE | self.settings}
        if self.offline is not None:
            offline = read_config_file(ROOT / "configs" / self.offline)
            question["offline"] = offline | OFFLINE | self.offline_settings
        return question

    @cached_property
    def found(self) -> dict[str, Any] | None:
        """The answer, if there is one to the present question."""
        if not self.answer.exists():
            return None
        found = json.loads(self.answer.read_text())
        return found if found["of"] == self.question else None

    def run(self) -> None:
        """Train, act, test, write the answer."""
        question, settings, before = self.question, dict(self.settings), None
        if self.offline is not None:
            offline_settings = OFFLINE | self.offline_settings
            offline = train(f"{self.name}-offline", self.offline, offline_settings)
            settings["experiment.ckpt_path"] = str(offline / "last.pth")
            before = test(offline)
        started = time.time()
        online = train(self.name, self.config, ONLINE | settings)
        minutes = (time.time() - started) / 60
        with open(online / "metrics.jsonl", encoding="utf-8") as file:
            records = [json.loads(line) for line in file]
        curve = [{"step": r["step"], **r["logs"]} for r in records if r["type"] == "rollout"]
        answer = {
            "of": question,
            "git_commit": git_commit(),
            "offline": before,
            "online": test(online),
            "steps": records[-1]["step"],
            "minutes": minutes,
            "curve": curve,
        }
        self.answer.write_text(json.dumps(answer, indent=4) + "\n", encoding="utf-8")


LEARNERS = (
    Learner(
        "td3_bc",
        "TD3+BC",
        "finetune.json",
        {
            "algo_name": "td3_bc",
            "algo.alpha": 2.5,
            "train.num_steps": 15000,
            "train.online.num_updates": 2,
        },
        "td3_bc.json",
    ),
    Learner(
        "residual",
        "BC, then a correction",
        "finetune.json",
        {
            "algo_name": "residual",
            "train.num_steps": 15000,
            "train.rewards.scale": 10,
            "algo.critic.deterministic_backup": True,
        },
        "bc.json",
        CLONING,
    ),
    Learner(
        "rlpd",
        "RLPD",
        "online/rlpd_push_v3.json",
        {"train.data": str(DATA.relative_to(ROOT))},
    ),
)


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


def said(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "none"
    rate, low, high = (
        measured[k] for k in ("Success_Rate", "Success_Rate_Low", "Success_Rate_High")
    )
    return f"{rate:.2f} ({low:.2f} to {high:.2f})"


def table() -> str:
    rows = [
        [
            learner.title,
            said(found["offline"]),
            said(found["online"]),
            f"{found['steps']}",
            f"{found['minutes']:.0f}",
        ]
        for learner in LEARNERS
        if (found := learner.found) is not None
    ]
    return markdown(["algorithm", "offline", "after acting", "steps", "minutes"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", nargs="+", default=[], help="names of algorithms")
    args = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if not DATA.exists():
        offrl(f"{PART}-data", "collect", *COLLECT)
    todo = [x for x in LEARNERS if x.found is None and (not args.only or x.name in args.only)]
    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(Learner.run, todo))
    fill(BEGIN.format(PART), table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
