"""What is learned of goals on a small problem whose solution is known.

A corridor of seven places with walls at both ends; an action above zero goes right, others left.
Episodes are random walks without a task, none of which ends. The shortest way from place to place
is the straight one.
"""

import h5py
import numpy as np
import pytest
import torch

from offrl import algo_factory, config_factory
from offrl.data.datasets import make_dataset
from offrl.data.loader import BatchLoader
from offrl.seeding import seed_everything
from offrl.tree import merge

pytestmark = pytest.mark.slow

PLACES, DISCOUNT, EXPECTILE = 7, 0.8, 0.95
PATH = np.arange(PLACES)
START, GOAL = np.divmod(np.arange(PLACES**2), PLACES)
RATE = {"learning_rate": {"initial": 3e-3}}
SMALL = {"layer_dims": [32, 32]}
IQL = {
    "observation": {"modalities": {"goal": {"low_dim": ["place"]}}},
    "train": {"goal_rewards": True, "goal_mode": "mixture"},
    "algo": {"vf_quantile": EXPECTILE, "adv": {"beta": 0.1}},
}
HIQL = {"algo": {"expectile": EXPECTILE, "adv": {"beta": 0.1}, "subgoal_steps": 2}}
HIQL["algo"]["planner"] = SMALL | {"adv": {"beta": 0.1}}


DERIVED = pytest.param(False, id="derived", marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=[pytest.param(True, id="next_obs"), DERIVED])
def walks(request, tmp_path_factory):
    path, rng = tmp_path_factory.mktemp("corridor") / "walks.hdf5", np.random.default_rng(0)
    codes = np.eye(PLACES)
    with h5py.File(path, "w") as file:
        for i in range(120):
            places, actions = [int(rng.integers(PLACES))], rng.uniform(-1, 1, 12)
            for action in actions:
                step = 1 if action > 0 else -1
                places.append(int(np.clip(places[-1] + step, 0, PLACES - 1)))
            demo = file.create_group(f"data/demo_{i}")
            demo["obs/place"], demo["actions"] = codes[places[:-1]], actions[:, None]
            if request.param:
                demo["next_obs/place"] = codes[places[1:]]
    return path


def expectile(outcomes, shares):
    """Of numbers ``[K, ...]`` that occur with such ``shares``."""
    found = outcomes.mean(0)
    for _ in range(100):
        weights = shares * np.where(outcomes > found, EXPECTILE, 1 - EXPECTILE)
        found = (weights * outcomes).sum(0) / weights.sum(0)
    return found


def exact_values(data, of_actions):
    """V of place and goal ``[P, P]`` where a goal counts as reached by the number of its step: a
    place that is the goal's, but was visited at another time, is not it."""
    batch = data.get_batch(torch.randint(len(data), (200_000,)))
    place, later = (batch[key]["place"][:, 0].argmax(1) for key in ("obs", "next_obs"))
    goal, done = batch["goal_obs"]["place"].argmax(1), batch["dones"][:, 0] == 1
    reached = batch["rewards"][:, 0] == 0
    stops = done & ~reached  # the step leads to the goal, an end in which no step starts
    assert (place[reached] == goal[reached]).all() and done[reached].all()
    assert (later[stops] == goal[stops]).all()

    def share(event, among):
        return float(event[among].float().mean())

    share_reached = np.diag([share(reached, (place == p) & (goal == p)) for p in PATH])
    moves = [np.clip(PATH + step, 0, PLACES - 1) for step in (-1, 1)]
    share_stops = np.zeros((2, PLACES, PLACES))
    for way, places in enumerate(moves):
        for p, q in enumerate(places):
            leads_there = (place == p) & (later == q) & (goal == q) & ~reached
            share_stops[way, p, q] = share(stops, leads_there)
    value = np.zeros((PLACES, PLACES))
    for _ in range(200):
        later_values = np.stack([DISCOUNT * value[places] for places in moves])
        if of_actions:  # first a mean, Q, then the best action
            outcomes = (1 - share_reached) * (-1 + (1 - share_stops) * later_values)
            value = expectile(outcomes, np.full_like(outcomes, 0.5))
        else:
            outcomes = [*(-1 + later_values), *np.full_like(later_values, -1), 0 * value]
            each = (1 - share_reached) / 2
            shares = [*(each * (1 - share_stops)), *(each * share_stops), share_reached]
            value = expectile(np.stack(outcomes), np.stack(shares))
    return value


def train(path, name, overrides, steps):
    seed_everything(0)
    defaults = config_factory(name)
    own = {
        "algo": {
            "optim_params": dict.fromkeys(defaults.algo.optim_params, RATE),
            "discount": DISCOUNT,
            "target_tau": 0.05,
            "critic": SMALL,
            "actor": SMALL,
        },
        "train": {"data": str(path), "goal_discount": 0.8, "batch_size": 128},
        "observation": {"modalities": {"obs": {"low_dim": ["place"]}}},
    }
    config = config_factory(name, merge(own, overrides))
    data = make_dataset(config, {})
    algo = algo_factory(name, config, data.obs_shapes, data.ac_dim, device="cpu")
    algo.inspect_data(data.values)
    batches = iter(BatchLoader(data, config.train.batch_size, seed=0))
    algo.set_train()
    for _ in range(steps):
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
    algo.set_eval()
    return algo, data


@pytest.mark.parametrize(
    ("name", "overrides"), [pytest.param("iql", IQL, marks=pytest.mark.thorough), ("hiql", HIQL)]
)
def test_goals_are_reached_by_the_shortest_way(walks, name, overrides):
    algo, data = train(walks, name, overrides, steps=600)
    codes = torch.eye(PLACES)
    obs, goal = {"place": codes[START]}, {"place": codes[GOAL]}
    with torch.no_grad():
        actions = algo.get_action(obs, goal).view(PLACES, PLACES).numpy()
        values = algo.nets["vf"]({"place": codes[START][:, None]}, goal)
    values = values.view(-1, PLACES, PLACES).mean(0).numpy()
    exact = exact_values(data, of_actions=name == "iql")
    assert np.abs(values - exact).max() < 0.4, (values.round(2), exact.round(2))
    leads_on = (actions > 0) == (PATH > PATH[:, None])
    assert leads_on[~np.eye(PLACES, dtype=bool)].all(), actions.round(2)
