"""How many explorers a Learner can have: a model of what saturates, and its constants.

    python benchmarks/scaling.py [--json benchmarks/results/scaling.json]

A trajectory takes time of its explorer, of the link to the Learner's machine, and of the Learner's
process: the Broker receives it there, and the Learner makes an update and publishes its weights.
What takes longest per trajectory is saturated, and the others wait for it (``predict``). The
Broker's costs are fitted to the real RayBroker, whose synthetic explorers give arrays of a set
size; the other times and sizes are those of a real Learner and Explorer in this process. Last, the
real RayBroker is compared with the model.
"""

from __future__ import annotations

import argparse
import json
import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from measure import machine, markdown, timed

from offrl.cluster import connected, options
from offrl.online import Learner
from offrl.online.explorer import Trajectory, Weights
from offrl.online.ray import AHEAD, RayBroker
from offrl.tree import merge

EXPLORERS = (10, 100, 1000)
LINKS = {"1 Gbit/s": 125e6, "10 Gbit/s": 1250e6}  # bytes a second
NODE = 32  # explorers of a machine
SIZES = (10_000, 3_000_000)  # bytes, between which costs are fitted
MEMORY = 500e6  # bytes of trajectories at most
PROCESSES = 2  # that the synthetic explorers share; of their own, each would take 340 MB

# -- the model ------------------------------------------------------------------------------------


class Traffic(NamedTuple):
    """What a training asks of everyone, per trajectory."""

    title: str
    num_steps: int  #: In all environments of an explorer.
    trajectory: int  #: Bytes.
    weights: int  #: Bytes.
    explore: float  #: Seconds of its explorer, with weights that are there.
    update: float  #: Seconds of the Learner, without the Broker's.


class Costs(NamedTuple):
    """Seconds that the Broker takes of the Learner's process."""

    per_trajectory: float
    per_explorer: float  #: For each trajectory, as it waits for all of them.
    per_byte: float  #: Of a trajectory.
    per_version: float
    per_weight: float  #: For each version, and byte of its weights.

    def receive(self, num_explorers: int, size: int) -> float:
        """Seconds for a trajectory of so many bytes."""
        return self.per_trajectory + self.per_explorer * num_explorers + self.per_byte * size

    def publish(self, size: int) -> float:
        """Seconds for weights of so many bytes."""
        return self.per_version + self.per_weight * size


class Prediction(NamedTuple):
    rate: float  #: Trajectories a second.
    saturated: str
    staleness: float  #: Versions between the weights that made a trajectory and the newest.


def seconds_of(
    traffic: Traffic, costs: Costs, num_explorers: int, link: float, num_trajectories: int = 1
) -> dict[str, float]:
    """How long each part is busy for a trajectory.

    link: bytes a second in each direction.
    num_trajectories: of each version of the weights. A version goes once to each machine which
        begins a trajectory with it.
    """
    receivers = min(math.ceil(num_explorers / NODE), num_trajectories)
    publish = costs.publish(traffic.weights) / num_trajectories
    return {
        "explorers": traffic.explore / num_explorers,
        "Broker": costs.receive(num_explorers, traffic.trajectory) + publish,
        "Learner": traffic.update,
        "link": max(traffic.trajectory, traffic.weights * receivers / num_trajectories) / link,
    }


def predict(
    traffic: Traffic, costs: Costs, num_explorers: int, link: float, num_trajectories: int = 1
) -> Prediction:
    """What so many explorers come to; see ``seconds_of``.

    ``AHEAD`` trajectories are asked of each explorer at any time, each with the weights that are
    the newest then: the next one of an explorer when something was learned from the last one. What
    was asked before is received before, so that the staleness depends on no time.
    """
    seconds = seconds_of(traffic, costs, num_explorers, link, num_trajectories)
    both = seconds["Broker"], seconds["Learner"]  # in turn, as they are one process
    parts = {"explorers": seconds["explorers"], "link": seconds["link"]}
    parts["Broker" if both[0] > both[1] else "Learner"] = sum(both)
    saturated = max(parts, key=lambda name: parts[name])
    staleness = (AHEAD * num_explorers - 1) / num_trajectories
    return Prediction(1 / parts[saturated], saturated, staleness)


# -- synthetic explorers --------------------------------------------------------------------------


class Synthetic:
    """Gives arrays of a set size, each after a set time; its interface is that of ``Explorer``."""

    def __init__(self, number: int, life: int, size: int, seconds: float):
        self._known = number, life
        self._data = {"obs": np.zeros(size, dtype=np.uint8)}
        self._seconds, self._num_given, self._version = seconds, 0, -1

    def load(self, weights: Weights) -> None:
        self._version = weights.version

    def explore(self) -> Trajectory:
        time.sleep(self._seconds)
        number = self._num_given
        self._num_given += 1
        made = self._version, self._data, 0, 0, [], {}
        return Trajectory(*self._known, number, *made, ready=time.time())

    def state(self) -> dict[str, Any]:
        return {"num_given": self._num_given}

    def close(self) -> None: ...


class Crowd:
    """Several explorers in a process, each in a thread of its own."""

    def __init__(self, make_explorer: Any, numbers: Sequence[int]):
        self._explorers = {number: make_explorer(number, 0) for number in numbers}

    def explore(self, number: int, weights: Weights) -> Trajectory:
        self._explorers[number].load(weights)
        return self._explorers[number].explore()


class CrowdedBroker(RayBroker):
    """The RayBroker, but for where its explorers are: ``PROCESSES`` processes share them."""

    def __init__(self, num_explorers: int, size: int, seconds: float = 0.0):
        make_explorer: Any = partial(Synthetic, size=size, seconds=seconds)
        super().__init__("local", timeout=300.0, make_explorer=make_explorer, num=num_explorers)
        self._crowds = {}
        for i in range(min(PROCESSES, num_explorers)):
            numbers = range(i, num_explorers, PROCESSES)
            threads = {str(number): 1 for number in numbers}
            crowd = self._ray.remote(concurrency_groups=threads)(Crowd).options(**options())
            self._crowds[i] = crowd.remote(self._make, numbers)
            for number in numbers:
                ask = self._crowds[i].explore.options(concurrency_group=str(number)).remote
                self._actors[number] = SimpleNamespace(
                    explore=SimpleNamespace(remote=partial(ask, number))
                )

    def wait_for_all(self) -> None:
        """Until everything that was asked is ready."""
        self._ask()
        asked = [ref for refs in self._asked.values() for ref, _ in refs]
        self._ray.wait(asked, num_returns=len(asked), fetch_local=False)

    def close(self) -> None:
        self._actors = self._crowds
        super().close()


@contextmanager
def synthetic(num_explorers: int, size: int, seconds: float = 0.0) -> Iterator[CrowdedBroker]:
    """A Broker of so many explorers, which have begun."""
    broker = CrowdedBroker(num_explorers, size, seconds)
    try:
        broker.publish(weights_of(0, 0))
        broker.wait_for_all()
        yield broker
    finally:
        broker.close()


def weights_of(version: int, size: int) -> Weights:
    return Weights(version, 0, 0, {"policy": np.zeros(size, dtype=np.uint8)}, None, {})


def learn(broker: CrowdedBroker, traffic: Traffic, num_trajectories: int) -> tuple[float, float]:
    """Be a Learner for so many trajectories. Returns how many came in a second, and their mean
    staleness, both of the second half."""
    half, staleness = num_trajectories // 2, []
    for version in range(1, num_trajectories + 1):
        if version == half + 1:
            begun = time.perf_counter()
        broker.publish(weights_of(version, traffic.weights))
        staleness.append(version - broker.receive().version)
        time.sleep(traffic.update)
    num = num_trajectories - half
    return num / (time.perf_counter() - begun), float(np.mean(staleness[half:]))


# -- its constants --------------------------------------------------------------------------------


def measure_costs(nums_explorers: Sequence[int] = (8, 64, 512)) -> Costs:
    """Fitted to the real RayBroker: the medians of the seconds in which it receives what is ready,
    and in which it publishes."""
    received = []
    for num in nums_explorers:
        for size in SIZES if num * SIZES[1] < MEMORY else SIZES[:1]:
            received.append((1, num, size, receive_seconds(num, size)))
    rows = np.array(received)
    # Each row counts by its share, as the seconds differ by orders of magnitude.
    fitted = np.linalg.lstsq(rows[:, :3] / rows[:, 3:], np.ones(len(rows)), rcond=None)[0]
    with synthetic(1, 1) as broker:
        small, large = (
            median(repeated(partial(broker.publish, weights_of(1, size)), 20)) for size in SIZES
        )
    per_weight = (large - small) / (SIZES[1] - SIZES[0])
    return Costs(*fitted.clip(0).tolist(), small, max(0.0, per_weight))


def receive_seconds(num_explorers: int, size: int, repeats: int = 5) -> float:
    """For a trajectory, where one of each explorer is ready and the explorers are quiet."""
    with synthetic(num_explorers, size, 0.1 + 2e-3 * num_explorers) as broker:

        def receive_all() -> None:
            for _ in range(num_explorers):
                broker.receive()

        seconds = []
        for _ in range(repeats):
            broker.wait_for_all()
            seconds.append(timed(receive_all)() / num_explorers)
    return median(seconds)


class Vectors(gym.Env):
    """Observations and actions of robosuite's size; its time is added."""

    observation_space = gym.spaces.Box(-1, 1, (60,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (7,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return np.zeros(60, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(60, np.float32), 0.0, False, False, {}


gym.register("Vectors-v0", Vectors, max_episode_steps=500)
ROBOSUITE_STEP = 0.014  # seconds, of one environment
PONG = {  # as in configs/online/pong_ppo.json
    "train": {"frame_stack": 4},
    "observation": {
        "encoder": {"rgb": {"core_class": "NatureCNN", "core_kwargs": {"feature_dimension": 512}}}
    },
    "algo": {"share_encoder": True, "policy_layer_dims": [], "value_layer_dims": []},
}


def measure_traffic(
    title: str, env: str, num_envs: int, num_steps: int, config: dict[str, Any], added: float = 0.0
) -> Traffic:
    """Of IMPALA: medians of a real Explorer and a real Learner, in turn and on one thread.

    added: seconds of a step in an environment beside those measured.
    """
    online = {"num_envs": num_envs, "collect_steps": num_steps}
    base = {
        "experiment": {"env": env},
        "train": {"num_steps": 10**9, "cuda": False, "batch_size": 10**4, "online": online},
        "algo": {"num_passes": 1},
        "distributed": {"explorers": 1},
    }
    learner = Learner(merge(base, config), algo_name="impala")
    explored, receive = [], learner.broker.receive

    def timed_receive() -> Trajectory:
        begun = time.perf_counter()
        trajectory = receive()
        explored.append(time.perf_counter() - begun)
        return trajectory

    learner.broker.receive = timed_receive
    records = learner()
    rounds = repeated(lambda: list(islice(records, 2)), 12)  # of collecting and training
    update = median([r - e for r, e in zip(rounds[2:], explored[2:], strict=True)])
    size, weights = (len(pickle.dumps(x)) for x in (receive(), learner.broker._weights))
    learner.close()
    steps = num_envs * num_steps
    return Traffic(title, steps, size, weights, median(explored[2:]) + added * steps, update)


def repeated(work: Callable[[], object], num: int) -> list[float]:
    run = timed(work)
    return [run() for _ in range(num)]


def measure_traffics() -> list[Traffic]:
    return [
        measure_traffic("CartPole", "CartPole-v1", 16, 50, {}),
        measure_traffic("Atari (Pong)", "ALE/Pong-v5", 16, 20, PONG),
        measure_traffic("robosuite", "Vectors-v0", 4, 100, {}, ROBOSUITE_STEP),
    ]


# -- what it says ---------------------------------------------------------------------------------


def sizes(traffics: Sequence[Traffic]) -> str:
    names = ["traffic", "steps", "trajectory, kB", "weights, kB", "explore, ms", "update, ms"]
    rows = []
    for x in traffics:
        numbers = x.num_steps, x.trajectory / 1e3, x.weights / 1e3, 1e3 * x.explore, 1e3 * x.update
        rows.append([x.title, *(f"{number:,.0f}" for number in numbers)])
    return markdown(names, rows)


def table(traffics: Sequence[Traffic], costs: Costs) -> str:
    """Steps a second that each part could reach alone, and what all of them reach."""
    names = ["traffic", "explorers", "explorers'", "Broker's", "Learner's"]
    names += [f"link's, {link}" for link in LINKS] + [f"reached at {link}" for link in LINKS]
    rows = []
    for traffic in traffics:
        for num in EXPLORERS:
            slow, fast = (seconds_of(traffic, costs, num, link) for link in LINKS.values())
            alone = [traffic.num_steps / s for s in (*slow.values(), fast["link"])]
            found = [predict(traffic, costs, num, link) for link in LINKS.values()]
            reached = [f"{x.rate * traffic.num_steps:,.0f} ({x.saturated})" for x in found]
            row = [traffic.title, str(num), *(f"{rate:,.0f}" for rate in alone), *reached]
            rows.append([*row, f"{found[0].staleness:,.0f}"])
    return markdown([*names, "staleness"], rows)


def comparison(costs: Costs) -> str:
    """The real RayBroker beside the model: 64 explorers that are slow, fast and large."""
    rows = []
    for title, size, explore, update in (
        ("explorers of 2 s", 70_000, 2.0, 0.002),
        ("fast explorers", 70_000, 0.0, 0.0),
        ("a Learner of 20 ms", 70_000, 0.0, 0.02),
        ("trajectories of 3 MB", 3_000_000, 0.5, 0.0),
    ):
        traffic = Traffic(title, 0, size, 40_000, explore, update)
        expected = predict(traffic, costs, 64, math.inf)
        with synthetic(64, size, explore) as broker:
            rate, staleness = learn(broker, traffic, 512)
        said = [f"{expected.rate:.0f} ({expected.saturated})", f"{rate:.0f}"]
        rows.append([title, *said, f"{expected.staleness:g}", f"{staleness:.1f}"])
    names = ["trajectories/s, model", "RayBroker", "staleness, model", "RayBroker"]
    return markdown(["64 synthetic explorers", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the constants there")
    parser.add_argument("--quick", action="store_true", help="fewer explorers; means nothing")
    args = parser.parse_args()

    torch.set_num_threads(1)
    print(f"{machine()}\n")
    traffics = measure_traffics()
    with connected("local", num_cpus=PROCESSES):
        costs = measure_costs((1, 8)) if args.quick else measure_costs()
        print({name: float(f"{value:.3g}") for name, value in costs._asdict().items()})
        print(f"\n{sizes(traffics)}\n{table(traffics, costs)}")
        if not args.quick:
            print(comparison(costs))
    if args.json:
        content = {"machine": machine(), "costs": costs._asdict()}
        content |= {"traffics": [traffic._asdict() for traffic in traffics]}
        args.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
