"""IMPALA with explorers: offrl in one process and on Ray, RLlib, and a bare pair of processes.

    python benchmarks/distributed.py [--repeats 7] [--seconds 5] [--json out.json]

All act in 16 CartPoles of gymnasium's vectorised form for each explorer, 50 steps at a time, and
learn once from each trajectory, with the same networks and settings and one torch thread. The bare
pair (``bare_impala.py``) is an explorer and a learner on one core. RLlib is installed into a folder
of its own and runs in a process of its own, with its explorer in another.

A figure is the median over the turns of steps in the environment per second, with the smallest and
the largest; ratios are formed within a turn. Of offrl, also the shares of the Learner's time in
which it waited, and in which a trajectory was ready that it had not received; and how many versions
of the weights its trajectories were behind.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import alternate, machine, markdown, ratios, spread
from online_peers import RLLIB, rllib_impala
from peers import elsewhere

# Nothing here imports gymnasium before it is needed: RLlib's process imports another one.

SETTINGS: dict[str, Any] = {"env_id": "CartPole-v1", "num_envs": 16, "collect_steps": 50}
SETTINGS |= {"obs_dim": 4, "num_actions": 2, "discount": 0.99, "lr": 6e-4}
SETTINGS |= {"vf_coef": 0.5, "ent_coef": 0.01, "max_norm": 0.5}
MOST_EXPLORERS = 2

Turn = dict[str, float]
GoOn = Callable[[float], Turn]  # for so many seconds

# -- the contestants ------------------------------------------------------------------------------


def bare() -> GoOn:
    from bare_impala import Impala

    pair = Impala(SETTINGS)

    def go_on(seconds: float) -> Turn:
        steps, took = pair.go_on(seconds)
        return turn(steps, took, pair.returns)

    return go_on


def rllib() -> GoOn:
    run = elsewhere(RLLIB, rllib_impala, SETTINGS)

    def go_on(seconds: float) -> Turn:
        steps, took, returned = run(seconds)
        return turn(steps, took, [returned])

    return go_on


def offrl(at_the_end: ExitStack, explorers: int, address: str | None) -> GoOn:
    from offrl.online import Learner

    s = SETTINGS
    online = {"num_envs": s["num_envs"], "collect_steps": s["collect_steps"]}
    train = {"num_steps": 10**9, "cuda": False, "max_grad_norm": s["max_norm"], "online": online}
    algo = {"discount": s["discount"], "vf_coef": s["vf_coef"], "ent_coef": s["ent_coef"]}
    rate = {"policy": {"learning_rate": {"initial": s["lr"]}}}
    config = {
        "experiment": {"env": s["env_id"]},
        "train": train | {"batch_size": 10**4},  # one update, also where episodes ended
        "algo": algo | {"num_passes": 1, "optim_params": rate},
        "distributed": {"explorers": explorers, "address": address},
    }
    learner = Learner(config, algo_name="impala")
    at_the_end.callback(learner.close)
    records = learner()

    def go_on(seconds: float) -> Turn:
        for _ in range(8 * explorers):  # what was collected meanwhile counts for no one
            next(records)
        learner.waits(), learner.traffic()
        begun, step = time.perf_counter(), learner.step
        while time.perf_counter() - begun < seconds:
            next(records)
        took = time.perf_counter() - begun
        waits = {name: value / took for name, value in learner.waits().items()}
        counts = waits | {"Staleness": learner.traffic()["Staleness"]}
        return turn(learner.step - step, took, learner._last_returns) | counts

    return go_on


def turn(steps: int, seconds: float, returns: Any) -> Turn:
    returned = float(np.mean(list(returns)[-20:])) if len(returns) else math.nan
    return {"steps/s": steps / seconds, "return": returned}


# -- the contest ----------------------------------------------------------------------------------


def contest(at_the_end: ExitStack, repeats: int, seconds: float) -> dict[str, list[Turn]]:
    """The turns of each contestant."""
    makers: dict[str, Callable[[], GoOn]] = {"bare": bare}
    makers["in process"] = partial(offrl, at_the_end, 1, None)
    for num in range(1, MOST_EXPLORERS + 1):
        makers[f"ray {num}"] = partial(offrl, at_the_end, num, "local")
    makers["rllib"] = rllib
    contestants: dict[str, Any] = {}
    for name, make in makers.items():
        try:
            contestants[name] = partial(make(), seconds)
        except (ImportError, RuntimeError) as error:
            print(f"without {name}: {error}", file=sys.stderr)
    return alternate(contestants, repeats)


def report(turns: dict[str, list[Turn]]) -> str:
    rates = {name: [x["steps/s"] for x in of_one] for name, of_one in turns.items()}
    others = [name for name in ("bare", "in process", "rllib") if name in turns]
    shares = {"Wait_Time": "waiting", "Transport_Time": "on its way", "Staleness": "staleness"}
    rows = []
    for name, of_one in turns.items():
        row = [name, spread(rates[name], 0)]
        row += [spread(ratios(rates[name], rates[other])) for other in others]
        row += [spread([x[key] for x in of_one], 3) if key in of_one[0] else "" for key in shares]
        rows.append([*row, f"{of_one[-1]['return']:.0f}"])
    header = ["", "steps/s", *(f"/ {other}" for other in others), *shares.values(), "return"]
    return markdown(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a turn")
    parser.add_argument("--json", type=Path, help="also write every turn there")
    args = parser.parse_args()

    torch.set_num_threads(1)
    from offrl.cluster import connected
    from offrl.kernels.allocator import FreedMemory

    FreedMemory()
    print(f"{machine()}; {args.repeats} turns of {args.seconds:g} s\n")
    with ExitStack() as at_the_end:
        at_the_end.enter_context(connected("local", num_cpus=1 + MOST_EXPLORERS))
        turns = contest(at_the_end, args.repeats, args.seconds)
        print(report(turns))
    if args.json:
        content = {"machine": machine(), "turns": turns}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
