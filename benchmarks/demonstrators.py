"""How often each scripted demonstrator solves its task.

Fills the table in docs/reference/environments.md, or with --only prints it.

    python benchmarks/demonstrators.py [--n 100] [--only Stack push-v3 ...]

In episodes whose seeds no other use has, each as long as the demonstrator says. Takes some minutes.
Needs the extra ``metaworld``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from measure import fill, machine, markdown
from tqdm import tqdm

from offrl.envs import env_args_named, tasks_of
from offrl.envs.experts import ExpertPolicy, scripted_expert
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation import summarize
from offrl.registry import EXPERTS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "environments.md"
BEGIN = "<!-- demonstrators by benchmarks/demonstrators.py -->\n"
SEEDS = 3_000_000
NOISE = 0.1


def row(task: str, n: int, styles: Sequence[str] = ()) -> list[str]:
    """The success rates with and without noise, and the lengths of the episodes."""
    env_args = env_args_named(task)
    policies = [ExpertPolicy(scripted_expert(env_args), x, styles) for x in (0.0, NOISE)]
    horizon = policies[0].horizon
    requests = [EpisodeRequest(SEEDS + i, horizon) for i in range(n)]
    rates, lengths = [], []
    with EnvPool(env_args) as pool:
        for policy in policies:
            results = list(pool.run(requests, policy))
            s = summarize(results)
            low, high = s["Success_Rate_Low"], s["Success_Rate_High"]
            rates.append(f"{s['Success_Rate']:.2f} ({low:.2f} to {high:.2f})")
            lengths.append(f"{s['Horizon']:.0f}")
    name = f"{task}, {' and '.join(styles)}" if styles else task
    return [name, *rates, lengths[0], str(horizon)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=100, help="episodes of each task")
    parser.add_argument("--only", nargs="+", default=[], help="tasks")
    args = parser.parse_args()
    cases = [(task, style) for task in EXPERTS.names() for style in ((), EXPERTS[task].styles)]
    if not (args.only or tasks_of("metaworld")):
        sys.exit("half of the table would be lost: pip install 'offrl[metaworld]', or use --only")
    cases += [(task, ()) for task in tasks_of("metaworld")]
    cases = [case for case in dict.fromkeys(cases) if not args.only or case[0] in args.only]
    rows = [row(task, args.n, style) for task, style in tqdm(cases, unit="task")]
    header = ["task", "success", f"with noise of {NOISE}", "steps", "horizon"]
    text = markdown(header, rows)
    if args.only:
        print(text, machine(), sep="\n")
    else:
        fill(PAGE, BEGIN, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
