"""Kill trainings at random moments, resume them, and compare them with one that ran through:

python tests/faults/kills.py --n 100
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(Path(__file__).parent)]

from comparison import assert_same_run  # noqa: E402
from conftest import SMALL, write_demos  # noqa: E402
from toy_env import toy_args  # noqa: E402

from offrl.tree import merge  # noqa: E402

# Training, validation, evaluations with simulators, proxies, TensorBoard, checkpoints of the best.
CONFIG = {
    "experiment": {
        "epoch_every_n_steps": 250,
        "validate": True,
        "render_video": False,
        "proxies": {"enabled": True, "rate": 2},
        "rollout": {"enabled": True, "n": 4, "horizon": 20, "rate": 1, "num_workers": 2},
        "save": {"every_n_epochs": 2, "on_best_validation": True},
    },
    "train": {
        "num_epochs": 8,
        "seq_length": 3,
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
    },
}
SEEN = SMALL["observation"]
PLANNER, ACTOR = {"subgoal_horizon": 3}, {"rnn": {"hidden_dim": 16, "horizon": 3}}
# Each draws random numbers in training: latents, subgoals.
ALGORITHMS = {
    "bc": {
        "algo": {"actor_layer_dims": [256, 256], "vae": {"enabled": True}},
        "observation": SEEN,
    },
    "hbc": {
        "algo": {"mode": "cascade", "planner": PLANNER, "actor": ACTOR},
        "observation": {"planner": SEEN},
    },
    "iris": {
        "algo": {
            "actor_use_random_subgoals": True,
            "value_planner": {"planner": PLANNER, "num_samples": 5},
            "actor": ACTOR,
        },
        "observation": {"value_planner": {"planner": SEEN}},
    },
}


def start(folder, name, *options):
    """Begin the run, or go on with it; its process."""
    runs = list((folder / "runs" / name).glob("2*"))
    new = ["--config", str(folder / "config.json"), "--name", name, *options]
    environ = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train.py"), *(["--resume", str(runs[0])] if runs else new)],
        cwd=folder,
        env=environ | {"KILLED_RUN": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    _, errors = process.communicate()
    assert process.returncode == 0 and "Traceback" not in errors, errors
    return errors


def left_over(folder):
    """Processes that the trainings in a folder started and that live on."""
    mark, found = f"KILLED_RUN={folder}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            pass  # it has ended
    return found


def kill_and_compare(num_kills, seed, folder, algo="bc", in_background=False):
    """Runs that were killed ``num_kills`` times in all; each must end as the whole one did, which
    has no evaluations in the background."""
    slow = 0.02 if in_background else 0.0  # so that an evaluation takes as long as an epoch
    write_demos(folder / "demos.hdf5", env_args=json.dumps(toy_args(slow=slow)))
    paths = {"train": {"data": str(folder / "demos.hdf5"), "output_dir": str(folder / "runs")}}
    config = merge(merge(SMALL, CONFIG), paths) | {"algo_name": algo} | ALGORITHMS[algo]
    if algo != "bc":  # the steps of hierarchies take longer
        config["experiment"]["epoch_every_n_steps"] = 50
    (folder / "config.json").write_text(json.dumps(config))
    begun = time.monotonic()
    finish(start(folder, "whole"))
    duration = time.monotonic() - begun
    (whole,) = (folder / "runs/whole").glob("2*")
    generator, num_done, num_runs = random.Random(seed), 0, 0
    while num_done < num_kills:
        name = f"killed{num_runs}"
        options = ["--set", f"experiment.rollout.in_background={json.dumps(in_background)}"]
        process = start(folder, name, *options)
        while num_done < num_kills:
            try:
                process.wait(timeout=generator.uniform(0, duration))
                break  # it ended before its time
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                num_done += 1
                deadline = time.monotonic() + 20
                while left_over(folder):  # a simulator that is starting looks a little later
                    assert time.monotonic() < deadline, "a process lives on"
                    time.sleep(0.05)
                process = start(folder, name, *options)
        finish(process)
        (run,) = (folder / "runs" / name).glob("2*")
        assert_same_run(run, whole)
        num_runs += 1
        print(f"{num_done} kills, {num_runs} runs, all the same to the last bit", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100, help="kills in all (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--algo", choices=ALGORITHMS, default="bc", help="(default: bc)")
    parser.add_argument("--in-background", action="store_true", help="evaluate beside the training")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        kill_and_compare(args.n, args.seed, Path(scratch), args.algo, args.in_background)
