"""What online RL reaches beside Stable-Baselines3: fills a table in docs/results.md.

    python benchmarks/online_results.py [--case ppo sac_hopper ...] [--seeds 5] [--jobs 2]

Trains each case with offrl and with Stable-Baselines3, which is installed into a folder of its own:
the same networks, hyperparameters (most of them the RL Zoo's) and numbers of steps. The final
policies, without exploration, are tested from the same 50 initial states. Each training has one
thread. The answers are kept in ``benchmarks/results/online`` and not asked for again as long as the
settings stay the same. All take some hours; Hopper needs the extra ``mujoco``. ``make drawings``
then draws the picture on the page.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from bare_online import CONTINUOUS, SETTINGS
from measure import fill, machine, markdown
from online import offrl_config
from online_peers import STABLE_BASELINES3, sb3_model
from results import ANSWERS, PAGE
from tqdm import tqdm

from offrl.training.run import git_commit

FOLDER = ANSWERS / "online"
BEGIN = "<!-- online by benchmarks/online_results.py -->\n"
TEST_SEEDS = range(100_000, 100_050)
SPANS = 50  # of a learning curve
# Student's t, its 97.5 % quantile, by the number of seeds.
QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306}

Act = Callable[[np.ndarray], np.ndarray]  # of several environments
# Of a step and the mean return of so many episodes that ended then.
Ended = Callable[[int, float, int], None]


@dataclass(frozen=True)
class Case:
    title: str
    algorithm: str
    num_steps: int
    settings: dict[str, Any]  # as those of ``bare_online``
    num_seeds: int = 5


PENDULUM = SETTINGS["td3"] | {"layer_dims": [400, 300], "discount": 0.98, "capacity": 200_000}
HOPPER = CONTINUOUS | {"env_id": "Hopper-v5", "lr": 3e-4, "random_steps": 10_000}
CASES = {
    "ppo": Case("PPO, CartPole-v1", "ppo", 100_000, SETTINGS["ppo"]),
    "dqn": Case("DQN, CartPole-v1", "dqn", 50_000, SETTINGS["dqn"]),
    "sac": Case("SAC, Pendulum-v1", "sac", 20_000, SETTINGS["sac"] | {"random_steps": 100}),
    "td3": Case("TD3, Pendulum-v1", "td3", 20_000, PENDULUM | {"random_steps": 10_000}),
    "sac_hopper": Case("SAC, Hopper-v5", "sac", 100_000, HOPPER, num_seeds=3),
}


def train_offrl(case: Case, seed: int, ended: Ended) -> Act:
    from offrl.online import Trainer

    config = offrl_config(case.algorithm, case.settings)
    env_id = case.settings["env_id"]
    trainer = Trainer(config, env_id, case.algorithm, case.num_steps, seed)
    for record in trainer():
        logs = record["logs"]
        if logs.get("Episodes"):
            ended(record["step"], logs["Return"], int(logs["Episodes"]))
    return trainer.agent.predict


def train_sb3(case: Case, seed: int, ended: Ended) -> Act:
    STABLE_BASELINES3.make_importable()
    model = sb3_model(case.algorithm, case.settings, seed)

    def note(their_locals: dict[str, Any], _: dict[str, Any]) -> bool:
        for info in their_locals["infos"]:
            if "episode" in info:
                ended(model.num_timesteps, float(info["episode"]["r"]), 1)
        return True

    model.learn(case.num_steps, callback=note)
    return lambda obs: model.predict(obs, deterministic=True)[0]


LIBRARIES: dict[str, tuple[str, Callable[[Case, int, Ended], Act]]] = {
    "offrl": ("offrl", train_offrl),
    "sb3": ("Stable-Baselines3", train_sb3),
}


@dataclass(frozen=True)
class Job:
    case: str
    library: str
    seed: int

    @property
    def answer(self) -> Path:
        return FOLDER / f"{self.case}-{self.library}-{self.seed}.json"

    @property
    def question(self) -> dict[str, Any]:
        """What the answer is of."""
        case = CASES[self.case]
        library = STABLE_BASELINES3.requirement if self.library == "sb3" else "offrl"
        return {"library": library, "num_steps": case.num_steps, **case.settings}

    @property
    def is_answered(self) -> bool:
        return self.answer.exists() and json.loads(self.answer.read_text())["of"] == self.question

    def run(self) -> None:
        """Train, test, write the answer."""
        case = CASES[self.case]
        sums = np.zeros((2, SPANS))  # of returns, and of their numbers

        def ended(step: int, mean_return: float, num: int) -> None:
            span = min(SPANS - 1, (step - 1) * SPANS // case.num_steps)
            sums[:, span] += num * mean_return, num

        act = LIBRARIES[self.library][1](case, self.seed, ended)
        answer = {
            "of": self.question,
            "git_commit": git_commit(),
            "machine": machine(),
            "returns": test(case.settings["env_id"], act),
            "curve": [round(total / num, 2) if num else None for total, num in sums.T],
        }
        partial = self.answer.with_suffix(".partial")
        partial.write_text(json.dumps(answer, indent=4) + "\n", encoding="utf-8")
        partial.replace(self.answer)


def test(env_id: str, act: Act) -> list[float]:
    """The return of an episode from each of the same initial states, side by side."""
    envs = [gym.make(env_id) for _ in TEST_SEEDS]
    seen = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, TEST_SEEDS, strict=True)])
    returns, running = np.zeros(len(envs)), set(range(len(envs)))
    while running:
        actions = act(seen)
        for i in list(running):
            seen[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
            returns[i] += reward
            if terminated or truncated:
                running.remove(i)
    return returns.round(2).tolist()


def jobs(cases: list[str], num_seeds: int | None = None) -> list[Job]:
    """The first seeds come first, cases and libraries in turn."""
    most = max(case.num_seeds for case in CASES.values())
    return [
        Job(name, library, seed)
        for seed in range(1, 1 + (num_seeds or most))
        for name in cases
        for library in LIBRARIES
        if seed <= (num_seeds or CASES[name].num_seeds)
    ]


# -- what is made of the answers ------------------------------------------------------------------


def answers_of(case: str, library: str) -> list[dict[str, Any]]:
    all_jobs = [Job(case, library, seed) for seed in range(1, 1 + max(QUANTILES))]
    return [json.loads(job.answer.read_text()) for job in all_jobs if job.is_answered]


def interval(values: list[float]) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % interval."""
    half = QUANTILES[len(values)] * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def cells(answers: list[dict[str, Any]]) -> list[str]:
    """The mean return with its interval over seeds, and the seeds' returns one by one."""
    if len(answers) < 2:
        return ["", ""]
    means = [mean(answer["returns"]) for answer in answers]
    middle, low, high = (f"{x:.0f}" for x in interval(means))
    return [f"{middle} ({low} to {high})", ", ".join(f"{x:.0f}" for x in sorted(means))]


def table() -> str:
    header = ["case", "steps"]
    for title, _ in LIBRARIES.values():
        header += [title, "its seeds"]
    rows = [
        [case.title, f"{case.num_steps}"]
        + [cell for library in LIBRARIES for cell in cells(answers_of(name, library))]
        for name, case in CASES.items()
        if answers_of(name, "offrl")
    ]
    return markdown(header, rows)


def one_thread() -> None:
    torch.set_num_threads(1)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES), help="what to run")
    parser.add_argument("--seeds", type=int, help="seeds of each case, 9 at most")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    args = parser.parse_args()
    one_thread()
    FOLDER.mkdir(exist_ok=True)
    STABLE_BASELINES3.install()
    todo = [job for job in jobs(args.case, args.seeds) if not job.is_answered]
    failed = False
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.jobs, context, one_thread) as pool:
        running = {pool.submit(job.run): job for job in todo}
        for done in tqdm(as_completed(running), total=len(todo), unit="run"):
            if done.exception():
                failed = True
                tqdm.write(f"{running[done].answer.stem}: {done.exception()!r}")
    fill(PAGE, BEGIN, table())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
