"""What a hierarchy costs beyond its parts: training steps of HBC and IRIS against those of their
planner, value function and actor one after the other; and acting between two subgoals against
acting of the actor alone.

    python benchmarks/hierarchy.py [--repeats 20]

Networks are those of the defaults, observations those of Lift (19 numbers), batches of 100.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
from measure import alternate, machine, markdown, ratios, spread, timed

from offrl import algo_factory, config_factory
from offrl.kernels.allocator import FreedMemory

KEYS = {
    "object": (10,),
    "robot0_eef_pos": (3,),
    "robot0_eef_quat": (4,),
    "robot0_gripper_qpos": (2,),
}
BATCH_SIZE, WINDOW, AC_DIM, STEPS, ACTIONS = 100, 10, 7, 3, 9


def raw_batch() -> dict[str, Any]:
    def obs() -> dict[str, torch.Tensor]:
        return {key: torch.randn(BATCH_SIZE, WINDOW, *shape) for key, shape in KEYS.items()}

    return {
        "obs": obs(),
        "next_obs": obs(),
        "actions": torch.rand(BATCH_SIZE, WINDOW, AC_DIM) * 2 - 1,
        "rewards": torch.rand(BATCH_SIZE, WINDOW),
        "dones": torch.zeros(BATCH_SIZE, WINDOW),
    }


def leaves(algo: Any) -> Iterator[Any]:
    """The algorithms that a hierarchy is made of in the end."""
    if not hasattr(algo, "parts"):
        yield algo
        return
    for part in algo.parts.values():
        yield from leaves(part)


def training(name: str) -> dict[str, Callable[[], None]]:
    batch = raw_batch()
    whole, apart = (algo_factory(name, config_factory(name), KEYS, AC_DIM, "cpu") for _ in range(2))
    goals = {key: x[:, -1] for key, x in batch["next_obs"].items()}

    def step(algo: Any, **more: Any) -> None:
        for _ in range(STEPS):
            algo.train_on_batch(algo.process_batch_for_training(batch | more), epoch=1)

    def steps_apart() -> None:
        for part in leaves(apart):
            step(part, **({"goal_obs": goals} if "policy" in part.nets else {}))

    return {"whole": lambda: step(whole), "parts": steps_apart}


def acting(name: str) -> dict[str, Callable[[], None]]:
    """The first of ten actions, which waits for the planner, is not measured."""
    algo: Any = algo_factory(name, config_factory(name), KEYS, AC_DIM, "cpu")
    algo.set_eval()
    obs = {key: torch.randn(1, 1, *shape) for key, shape in KEYS.items()}
    goal = {key: x[:, 0] for key, x in obs.items()}
    with torch.no_grad():
        _, begun = algo.act(obs)
        _, started = algo.parts["actor"].act(obs, goal)

    @torch.no_grad()
    def whole() -> None:
        state = begun
        for _ in range(ACTIONS):
            _, state = algo.act(obs, None, state)

    @torch.no_grad()
    def actor() -> None:
        state = started
        for _ in range(ACTIONS):
            _, state = algo.parts["actor"].act(obs, goal, state)

    return {"whole": whole, "parts": actor}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--repeats", type=int, default=20, help="turns of each")
    args = parser.parse_args()
    FreedMemory()
    rows = []
    for what, contestants, count in (
        ("training step", training, STEPS),
        ("action", acting, ACTIONS),
    ):
        for name in ("hbc", "iris"):
            works = {key: timed(work) for key, work in contestants(name).items()}
            seconds = alternate(works, args.repeats)
            each = (spread([1000 * x / count for x in values]) for values in seconds.values())
            rows.append([name, what, *each, spread(ratios(seconds["whole"], seconds["parts"]))])
    print(machine())
    print(markdown(["algorithm", "of", "whole (ms)", "parts (ms)", "ratio"], rows))


if __name__ == "__main__":
    main()
