"""A trained policy at an environment, bare: the loop that a robot runs, too. Copy and change.

python examples/rollout.py --checkpoint runs/bc/.../last.pth --n 3
"""

import argparse

from offrl import env_from_checkpoint, policy_from_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--horizon", type=int, default=100)
    args = parser.parse_args()

    policy, ckpt = policy_from_checkpoint(args.checkpoint)
    env, _ = env_from_checkpoint(ckpt_dict=ckpt)

    for seed in range(args.n):
        obs, _ = env.reset(seed=seed)
        policy.start_episode(seed=seed)
        total = 0.0
        for _ in range(args.horizon):
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total += reward
            if terminated or truncated or env.is_success()["task"]:
                break
        print(f"seed {seed}: success {env.is_success()['task']}, return {total:.2f}")
    env.close()


if __name__ == "__main__":
    main()
