"""Run a trained policy in an environment, in a plain loop; a robot runs the same loop.

    python examples/rollout.py --checkpoint runs/bc/TIMESTAMP/last.pth --n 3

Copy it to deploy a policy. ``offrl rollout`` evaluates one, in parallel and with an interval.
"""

import argparse

from offrl import env_from_checkpoint, policy_from_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--n", type=int, default=3)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--module", action="append", default=[], help="of your own, that it names")
    args = parser.parse_args()

    policy, ckpt = policy_from_checkpoint(args.checkpoint, modules=args.module)
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
