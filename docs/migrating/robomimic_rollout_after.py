"""Evaluate the same checkpoint with offrl."""

import argparse

from offrl import (
    env_from_checkpoint,
    policy_from_checkpoint,
)

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--n", type=int, default=3)
parser.add_argument("--horizon", type=int, default=100)
args = parser.parse_args()

policy, ckpt = policy_from_checkpoint(args.checkpoint)
env, _ = env_from_checkpoint(ckpt_dict=ckpt)

for episode in range(args.n):
    policy.start_episode(seed=episode)
    obs, _ = env.reset(seed=episode)
    total = 0.0
    for _ in range(args.horizon):
        step = env.step(policy(obs))
        obs, reward, terminated, truncated, _ = step
        total += reward
        success = env.is_success()["task"]
        if terminated or truncated or success:
            break
    print(f"episode {episode}: {total:.2f} {success}")
env.close()
