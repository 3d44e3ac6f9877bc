"""How much two jobs gain in a study, and how long a report takes.

    python benchmarks/study.py [--repeats 3] [--steps 1500]

A study of eight cells of one thread each, BC on Lift with an evaluation, one after the other and
two side by side, in turns; and ``offrl report`` of 100 runs, which are copies. Takes minutes.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from measure import alternate, machine, markdown, ratios, spread

from offrl.config.files import find_file


def study(folder: Path, args: argparse.Namespace, jobs: int) -> Callable[[], float]:
    """A study with so many jobs that begins anew each time; its seconds."""
    output = folder / f"jobs_{jobs}"
    content = {
        "output": str(output),
        "configs": ["bc.json"],
        "datasets": [str(find_file("datasets/lift/low_dim.hdf5"))],
        "seeds": [*range(args.cells)],
        "set": {
            "train.num_epochs": 1,
            "experiment.epoch_every_n_steps": args.steps,
            "experiment.rollout.n": args.episodes,
            "experiment.validate": False,
            "experiment.render_video": False,
        },
    }
    file = folder / f"jobs_{jobs}.yaml"
    file.write_text(yaml.dump(content))

    def run() -> float:
        shutil.rmtree(output, ignore_errors=True)
        return offrl("study", str(file), "--jobs", str(jobs))

    return run


def offrl(*arguments: str) -> float:
    """The seconds of a command."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "offrl", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def report(folder: Path, num_runs: int) -> Callable[[], float]:
    """A report of so many runs: the study's, under other names."""
    runs = sorted(run.parent for run in (folder / "jobs_2").glob("*/*/metrics.jsonl"))
    many = folder / "many"
    for number in range(num_runs):
        name = f"algorithm_{number // len(runs)}"
        copy = many / name / str(number)
        copy.mkdir(parents=True)
        for file in (*runs[number % len(runs)].glob("config-*.json"), runs[0] / "metrics.jsonl"):
            text = file.read_text(encoding="utf-8")
            text = text.replace(runs[number % len(runs)].parent.name, name)
            (copy / file.name).write_text(text, encoding="utf-8")

    def run() -> float:
        shutil.rmtree(folder / "report", ignore_errors=True)
        return offrl("report", str(many), "--output", str(folder / "report"))

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1500, help="of each cell")
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=20, help="of each cell's evaluation")
    parser.add_argument("--runs", type=int, default=100, help="in the report")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contestants = {f"{jobs} jobs": study(Path(folder), args, jobs) for jobs in (1, 2)}
        seconds = alternate(contestants, args.repeats, warm_up=False)
        seconds["report"] = alternate(
            {"report": report(Path(folder), args.runs)}, args.repeats, warm_up=False
        )["report"]
    share = spread(ratios(seconds["2 jobs"], seconds["1 jobs"]))
    rows = [
        [f"a study of {args.cells} cells, one after the other", spread(seconds["1 jobs"], 1), "1"],
        ["two side by side", spread(seconds["2 jobs"], 1), share],
        [f"a report of {args.runs} runs", spread(seconds["report"], 1), "-"],
    ]
    print(markdown(["what", "seconds", "ratio"], rows))
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
