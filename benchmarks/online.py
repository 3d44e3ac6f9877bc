"""Online RL: offrl, Stable-Baselines3 and bare loops act and learn in the same environments.

    python benchmarks/online.py [--case ppo ...] [--repeats 7] [--seconds 1] [--json out.json]

The bare loops (``bare_online.py``) are what environments and updates cost; Stable-Baselines3 is
installed into a folder of its own and runs in a process of its own. All have the same networks and
settings and one torch thread, and go on by the same number of steps in the environment in each
turn, after the first steps, which are random. A figure is the median over the turns, with the
smallest and the largest; ratios are formed within a turn. The last column is the mean return of the
last 20 episodes after the last turn. The case ``envs`` is environments alone, without a policy;
``replay`` is the replay beside an update of SAC.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from bare_online import CASES, SETTINGS
from bare_parts import Environments
from measure import alternate, machine, markdown, ratios, spread, timed
from online_peers import STABLE_BASELINES3, sb3_training
from peers import elsewhere

from offrl.kernels.allocator import FreedMemory

NUM_ENVS = 16  # of environments alone
Train = Callable[[int], float]  # by so many steps, to the mean return of the last episodes

# -- the contestants ------------------------------------------------------------------------------


def bare_training(case: str) -> Train:
    training = CASES[case](SETTINGS[case])

    def train(num_steps: int) -> float:
        training.run(num_steps)
        return float(np.mean(training.returns)) if training.returns else math.nan

    return train


def offrl_training(case: str) -> Train:
    from offrl.online import Trainer

    settings = SETTINGS[case]
    trainer = Trainer(offrl_config(case, settings), settings["env_id"], case)
    records, returns = iter(trainer()), deque(maxlen=20)

    def train(num_steps: int) -> float:
        goal = trainer.step + num_steps
        while trainer.step < goal:
            logs = next(records)["logs"]
            if "Return" in logs:
                returns.append(logs["Return"])
        return float(np.mean(returns)) if returns else math.nan

    return train


def offrl_config(case: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as a config of offrl's. They may have ``layer_dims``."""
    online = {
        name: settings[name]
        for name in ("num_envs", "collect_steps", "num_updates", "random_steps")
        if name in settings
    }
    if "capacity" in settings:
        online["replay"] = {"capacity": settings["capacity"]}
    train = {"cuda": False, "max_grad_norm": settings.get("max_norm"), "online": online}
    if "batch_size" in settings:
        train["batch_size"] = settings["batch_size"]
    networks = {"ppo": ["policy"], "a2c": ["policy"], "dqn": ["critic"]}.get(case)
    rate = {"learning_rate": {"initial": settings["lr"]}}
    algo: dict[str, Any] = {
        "discount": settings["discount"],
        "optim_params": {name: rate for name in networks or ["critic", "actor"]},
    }
    if "layer_dims" in settings:
        sizes = {"layer_dims": settings["layer_dims"]}
        algo |= {"critic": sizes, "actor": sizes}
    if case in ("ppo", "a2c"):
        algo["gae_lambda"] = settings["gae_lambda"]
    if case == "ppo":
        algo["num_passes"] = settings["num_epochs"]
    if case == "dqn":
        steps, final = settings["explored_steps"], settings["final_epsilon"]
        algo |= {"target_every": 1, "exploration": {"steps": steps, "final": final}}
    return {"train": train, "algo": algo}


MAKERS: dict[str, Callable[[str], Train]] = {
    "bare": bare_training,
    "sb3": lambda case: elsewhere(STABLE_BASELINES3, sb3_training, case, SETTINGS[case]),
    "offrl": offrl_training,
}


def contestants_of(case: str) -> dict[str, Train]:
    contestants = {}
    for name, make in MAKERS.items():
        try:
            contestants[name] = make(case)
        except (ImportError, RuntimeError) as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return contestants


def environments_alone() -> dict[str, Train]:
    """CartPole pushed to the right, by an environment's step at a time."""

    def a_list() -> Train:
        envs = Environments("CartPole-v1", NUM_ENVS, seed=0)
        return steps_of(envs.step)

    def vector(mode: str) -> Train:
        envs = gym.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode=mode)
        envs.reset(seed=0)
        return steps_of(envs.step)

    def steps_of(step: Callable[[np.ndarray], object]) -> Train:
        actions = np.ones(NUM_ENVS, dtype=np.int64)

        def train(num_steps: int) -> float:
            for _ in range(num_steps // NUM_ENVS):
                step(actions)
            return math.nan

        return train

    names = {"vector_entry_point": "native vector", "sync": "SyncVectorEnv"}
    names |= {"async": "AsyncVectorEnv"}
    return {"list": a_list()} | {title: vector(mode) for mode, title in names.items()}


def replay_alone() -> dict[str, Train]:
    """SAC's update, and what the replay does for it: a step is added and a batch is drawn."""
    from offrl.online import Trainer

    settings = SETTINGS["sac"]
    trainer = Trainer(offrl_config("sac", settings), settings["env_id"], "sac")
    drawn, buffer, size = None, trainer.buffer, settings["batch_size"]
    for _ in trainer():
        if trainer.step > settings["random_steps"]:
            drawn = buffer.draw(1, size)
            break
    batch = trainer.alg.process_batch_for_training(drawn)
    actions = np.zeros((1, 1), dtype=np.float32)
    stepped = trainer.envs.step(actions)

    def update() -> None:
        trainer.alg.train_on_batch(batch, 1)

    def replay() -> None:
        buffer.record(actions, stepped)
        buffer.draw(1, size)

    def repeated(work: Callable[[], None]) -> Train:
        def train(num: int) -> float:
            for _ in range(num):
                work()
            return math.nan

        return train

    return {"an update": repeated(update), "a step and a batch": repeated(replay)}


ALONE = {"envs": (environments_alone, NUM_ENVS), "replay": (replay_alone, 1)}

# -- the contest ----------------------------------------------------------------------------------


def contest(case: str, repeats: int, seconds: float) -> dict[str, Any]:
    """The steps of a turn, the seconds of all turns and the last returns, by contestant."""
    if case in ALONE:
        make, a_round = ALONE[case]
        contestants, start = make(), a_round
    else:
        contestants, settings = contestants_of(case), SETTINGS[case]
        a_round = settings["collect_steps"] * settings.get("num_envs", 1)
        start = settings.get("random_steps", 0) + 1
    returns: dict[str, float] = {}

    def go_on(name: str, num_steps: int) -> None:
        returns[name] = contestants[name](num_steps)

    def whole_rounds(num_steps: float) -> int:
        return a_round * math.ceil(num_steps / a_round)

    probe, rates = whole_rounds(100), []
    for name in contestants:
        go_on(name, whole_rounds(start))
        began = time.perf_counter()
        go_on(name, probe)
        rates.append(probe / (time.perf_counter() - began))
    steps = whole_rounds(rates[0] * seconds)
    turns = {name: timed(partial(go_on, name, steps)) for name in contestants}
    return {"steps": steps, "seconds": alternate(turns, repeats), "returns": returns}


def report(case: str, results: dict[str, Any]) -> str:
    steps = results["steps"]
    first, yardstick = next(iter(results["seconds"].items()))
    title = case if case in ALONE else f"{case}, {SETTINGS[case]['env_id']}"
    return markdown(
        [title, "steps/s", f"rate / {first}'s", "return"],
        [
            [
                name,
                spread([steps / s for s in seconds], 0),
                spread(ratios(yardstick, seconds)),
                "" if math.isnan(results["returns"][name]) else f"{results['returns'][name]:.0f}",
            ]
            for name, seconds in results["seconds"].items()
        ],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    cases = [*CASES, *ALONE]
    parser.add_argument("--case", nargs="+", choices=cases, default=cases, help="what to run")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="length of a turn of the bare loop, about"
    )
    parser.add_argument("--json", type=Path, help="also write every measured second there")
    args = parser.parse_args()

    torch.set_num_threads(1)
    FreedMemory()
    print(f"{machine()}; {args.repeats} turns\n")
    everything = {}
    for case in args.case:
        everything[case] = contest(case, args.repeats, args.seconds)
        print(f"{everything[case]['steps']} steps a turn\n\n{report(case, everything[case])}")
    if args.json:
        content = {"machine": machine(), "cases": everything}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
