"""A small problem with a known solution, which a loss with a flipped sign does not reach. The
observation ``position`` says on which side acting is good (1 or -1), and whether it is rewarded
there. Most recorded actions are on the good side. An algorithm that clones them, or that learns
from the rewards, acts on that side as well."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import torch
from torch import Tensor

from offrl.algos import PlannerAlgo, PolicyAlgo, ValueAlgo

if TYPE_CHECKING:
    from offrl.testing import AlgoCase

NUM_STEPS, EVERY = 1000, 50
LEAST = 0.2  # difference of two compared numbers; the data's actions differ by 2/3
PAID = 8  # the highest reward
ROWS = 16  # of each kind of state
STATES = ((1.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (1.0, 0.0, 1.0))  # side, whether that is rewarded, 1


def write_sided_demos(path: Path, is_discrete: bool) -> None:
    """Write demonstrations, each of which stays on one side. There are three discrete actions."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(60):
            side, paid, length = i % 2 * 2 - 1, i // 2 % 2, 6
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/position"] = np.tile([float(side), paid, 1], (length, 1))
            demo["obs/speed"] = rng.standard_normal((length, 2))
            actions = rng.uniform(-0.5, 0.5, (length, 2)) + [side / 2, 0]
            actions[::3] = rng.uniform(-1, 1, (2, 2))  # so that the data has actions of all kinds
            demo["actions"] = np.digitize(actions[:, 0], [-0.4, 0.4]) if is_discrete else actions
            missed = np.abs(actions - [side / 2, 0]).sum(1)
            demo["rewards"] = PAID * paid * np.maximum(0, 1 - missed)  # more than entropy counts
            demo["dones"] = np.ones(length)  # nothing depends on what comes later


def it_learns_what_is_right(case: "AlgoCase") -> None:
    """Check that actions, subgoals and values come as near to the solution as those of offrl's own
    algorithms. (Algorithms that are rewarded for goals are not checked.)"""
    path, train = case.data.with_name("sided.hdf5"), case.config().train
    if train.goal_rewards:
        return
    write_sided_demos(path, train.acts_discretely)
    algo, batches = case.make({"data": str(path)}, batch_size=32)
    algo.set_train()
    wrong = ["", ""]
    for step in range(NUM_STEPS):
        epoch = 1 + 3 * step // NUM_STEPS
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch)
        if (step + 1) % EVERY == 0:
            algo.set_eval()
            with torch.no_grad():
                shortfalls = (
                    what.format(more, less)
                    for what, more, less in _compared(algo)
                    if not more - less > LEAST
                )
                wrong = [wrong[1], next(shortfalls, "")]
            algo.set_train()
            if step > EVERY and not any(wrong):
                return
    raise AssertionError(
        f"after {NUM_STEPS} updates {wrong[1] or wrong[0]}; is the sign of a loss wrong, or does a "
        "learning rate warm up for longer?"
    )


def _compared(algo: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield sentences about two numbers, and these. If an algorithm has learned the solution, the
    first number is the larger one."""
    position = torch.tensor(STATES).repeat_interleave(ROWS, 0)
    noise = torch.randn(ROWS, 2, generator=torch.Generator().manual_seed(0))
    obs = {"position": position, "speed": noise.repeat(len(STATES), 1)}
    goal = obs if algo.obs_spec.keys("goal") else None
    if (frames := algo.global_config.train.frame_stack) > 1:
        obs = {key: x[:, None].repeat(1, frames, 1) for key, x in obs.items()}
    if isinstance(algo, PolicyAlgo):
        algo.reset()
        raw = algo.raw_action(algo.get_action(obs, goal)).double().view(len(STATES), ROWS, -1)
        algo.reset()
        if not algo.is_discrete:
            size = raw[:2, :, 1].abs().mean()
            yield "the second number of actions, to be near 0, is still of size {1:.3g}", 1, size
        yield "actions for the sides 1 and -1 are {:.3g} and {:.3g}", *raw[:2, :, 0].mean(1)
    elif isinstance(algo, PlannerAlgo):
        found = algo.get_subgoal_predictions(obs, goal)["position"].view(len(STATES), ROWS, -1)
        yield "subgoals for the sides 1 and -1 are {:.3g} and {:.3g}", *found[:2, :, 0].mean(1)
    if isinstance(algo, ValueAlgo):
        taken = [_actions(algo, position[:, 0] * extent) for extent in (0.5, -0.5)]
        asked = {
            "what is paid and what is not": lambda: algo.get_state_value(obs, goal)[:, 0],
            "good actions and bad ones": lambda: torch.cat(
                [algo.get_state_action_value(obs, a, goal)[:ROWS, 0] for a in taken]
            ),
        }
        for what, ask in asked.items():
            try:
                values = ask().view(-1, ROWS).mean(1)
            except NotImplementedError:  # it has no values of this kind
                continue
            yield f"a value is {{1:.3g}}, and no reward above {PAID}", 2 * PAID, values.abs().max()
            yield f"the values of {what} are {{:.3g}} and {{:.3g}}", values[0], values[-1]


def _actions(algo: Any, first: Tensor) -> Tensor:
    """Make the actions whose first number is given, or the discrete actions that stand for them."""
    if algo.is_discrete:
        return algo.learned_action((first > -0.4).long() + (first > 0.4))
    return algo.learned_action(torch.stack([first, torch.zeros_like(first)], dim=1))
