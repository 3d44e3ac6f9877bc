"""Record CartPole, whose actions are discrete, played by a rule that often makes mistakes.

    python examples/record_cart_pole.py --output cart_pole.hdf5
    offrl train --config examples/discrete_cql.json --dataset cart_pole.hdf5

Copy it to record a policy or a rule of your own in an environment of gymnasium's.
"""

import argparse

import numpy as np

from offrl.acting import Policy
from offrl.data.writer import DemoWriter
from offrl.envs.workers import EnvPool, EpisodeRequest
from offrl.evaluation import COLLECTION_SEEDS

ENV_ARGS = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}


class Balance(Policy):
    """Push towards where the pole falls (1: right, 0: left), half of the time anywhere."""

    def __init__(self):
        self.generators = {}

    def start_episode(self, env=0, seed=None):
        self.generators[env] = np.random.default_rng(seed)

    def act(self, obs_by_env, goal_by_env=None, reward_by_env=None):
        return {
            env: self.push(obs["flat"], self.generators[env]) for env, obs in obs_by_env.items()
        }

    def push(self, obs, generator):
        _, _, angle, turn = obs
        return generator.integers(2) if generator.random() < 0.5 else int(angle + turn > 0)


def record(path, num_episodes):
    seeds = range(COLLECTION_SEEDS, COLLECTION_SEEDS + num_episodes)  # no test case among them
    requests = [EpisodeRequest(seed, horizon=500, record=True) for seed in seeds]
    with EnvPool(ENV_ARGS) as pool, DemoWriter(path, ENV_ARGS) as writer:
        results = sorted(pool.run(requests, Balance()), key=lambda result: result.request.seed)
        for result in results:
            writer.write(result.trajectory)
        writer.write_split()
    return sum(result.total_reward for result in results) / num_episodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", required=True)
    parser.add_argument("--n", type=int, default=200)
    args = parser.parse_args()
    print(f"{args.output}: {args.n} episodes, return {record(args.output, args.n):.1f}")


if __name__ == "__main__":
    main()
