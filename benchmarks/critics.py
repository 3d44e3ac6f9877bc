"""What a step of many critics costs: forward, backward and Adam of ten against two.

    python benchmarks/critics.py [--repeats 30]

Networks of 2 x 256, batch 256, 19 observation and 7 action dimensions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import alternate, machine, ratios, spread, timed

from offrl import config_factory
from offrl.kernels.allocator import FreedMemory
from offrl.models.critics import Critics
from offrl.specs import ObsSpec

BATCH_SIZE, OBS_DIM, AC_DIM, STEPS = 256, 19, 7, 10


def steps(num_critics: int) -> Callable[[], None]:
    """A function that takes some steps."""
    modalities = {"obs": {"low_dim": ["x"]}}
    config = config_factory("iql", {"observation": {"modalities": modalities}})
    spec = ObsSpec.from_config(config.observation, {"x": (OBS_DIM,)})
    critics = Critics(spec, AC_DIM, [256, 256], num_critics)
    optimizer = torch.optim.Adam(critics.parameters(), fused=True)
    obs = {"x": torch.randn(BATCH_SIZE, 1, OBS_DIM)}
    actions, target = torch.randn(BATCH_SIZE, 1, AC_DIM), torch.randn(BATCH_SIZE, 1)

    def take() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            (critics(obs, actions) - target).square().mean((1, 2)).sum().backward()
            optimizer.step()

    return take


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="turns of each")
    args = parser.parse_args()
    FreedMemory()
    seconds = alternate({f"{n} critics": timed(steps(n)) for n in (2, 10)}, args.repeats)
    print(machine())
    for name, values in seconds.items():
        print(f"{name}: {spread([1000 * x / STEPS for x in values])} ms per step")
    print(f"ten cost {spread(ratios(seconds['10 critics'], seconds['2 critics']))} times two")


if __name__ == "__main__":
    main()
