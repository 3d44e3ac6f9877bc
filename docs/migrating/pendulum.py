"""Record Pendulum-v1 in a file of D4RL's form."""

import argparse

import gymnasium
import h5py
import numpy as np

KEYS = "observations actions rewards terminals timeouts"


def torque(obs, rng):
    """Swing the pole up and hold it there, with noise."""
    cos, sin, speed = obs
    energy = speed**2 / 6 + 5 * cos
    best = 2 * np.sign(speed * (5 - energy))
    if cos > 0.9:
        best = -10 * sin - 2 * speed
    return np.clip([best + rng.normal()], -2, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", required=True)
    parser.add_argument("--n", type=int, default=50)
    args = parser.parse_args()

    env = gymnasium.make("Pendulum-v1")
    rng = np.random.default_rng(0)
    steps = []
    for seed in range(args.n):
        obs, _ = env.reset(seed=seed)
        ends = [False]
        while not any(ends):
            action = torque(obs, rng)
            after, reward, *ends, _ = env.step(action)
            steps.append((obs, action, reward, *ends))
            obs = after

    columns = zip(*steps, strict=True)
    with h5py.File(args.output, "x") as file:
        for key, rows in zip(
            KEYS.split(), columns, strict=True
        ):
            file[key] = np.array(rows, dtype=np.float32)


if __name__ == "__main__":
    main()
