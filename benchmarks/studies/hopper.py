"""Makes the data of the study ``locomotion.yaml``, in the manner of D4RL, from offrl's own SAC.

    python benchmarks/studies/hopper.py

SAC learns Hopper-v5. *medium-replay* are the first 100,000 steps that it took, *medium* as many
steps of the first of its policies that has a third of the return of D4RL's expert. Takes an hour;
what is there already is not made again.
"""

import subprocess
import sys
from math import ceil
from pathlib import Path

from offrl.reports.run import Run

ROOT = Path(__file__).parents[2]
RUNS, DATA = ROOT / "studies" / "hopper_sac", ROOT / "datasets" / "hopper"
MEDIUM = 3234.3 / 3
STEPS, EVERY = 100_000, 10_000
SEEDS = 10_000  # of the recorded episodes


def offrl(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "offrl", *map(str, arguments)], cwd=ROOT, check=True)


def train() -> Path:
    """The run folder of SAC, at its end."""
    runs = sorted(RUNS.glob("2*"))
    settings = {
        "train.num_steps": 3 * STEPS,
        "experiment.epoch_every_n_steps": EVERY,
        "experiment.rollout.rate": 1,
        "experiment.rollout.n": 10,
        "experiment.save.every_n_epochs": 1,
        "experiment.render_video": "false",
    }
    if runs:
        offrl("train", "--resume", runs[0])
    else:
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        place = ("--output", RUNS.parent, "--name", RUNS.name)
        offrl("train", "--config", "online/hopper_sac.json", "--seed", 1, *place, *sets)
    return sorted(RUNS.glob("2*"))[0]


def main() -> int:
    replay, medium = DATA / "medium_replay.hdf5", DATA / "medium.hdf5"
    run = train()
    if not replay.exists():
        offrl("export-replay", run / "last.pth", replay, "--steps", STEPS)
    if not medium.exists():
        evaluated = [(path, record["logs"]) for path, record in Run(run).kept_checkpoints()]
        good = [(path, logs) for path, logs in evaluated if logs["Return"] >= MEDIUM]
        if not good:
            sys.exit(f"{run}: no checkpoint has a return of {MEDIUM:.0f}; train longer")
        checkpoint, logs = good[0]
        number = ceil(STEPS / logs["Horizon"])
        print(f"{checkpoint}, return {logs['Return']:.0f}, is the medium policy")
        recorded = ("--seed", SEEDS, "--record", medium)
        offrl("rollout", "--checkpoint", checkpoint, "--n", number, *recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
