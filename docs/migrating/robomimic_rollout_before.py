"""Evaluate a checkpoint with robomimic."""

import argparse

from robomimic.utils import file_utils, torch_utils

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", required=True)
parser.add_argument("--n", type=int, default=3)
parser.add_argument("--horizon", type=int, default=100)
args = parser.parse_args()

policy, ckpt = file_utils.policy_from_checkpoint(
    ckpt_path=args.checkpoint,
    device=torch_utils.get_torch_device(True),
)
env, _ = file_utils.env_from_checkpoint(ckpt_dict=ckpt)

for episode in range(args.n):
    policy.start_episode()
    obs = env.reset()
    total = 0.0
    for _ in range(args.horizon):
        action = policy(ob=obs)
        obs, reward, done, _ = env.step(action)
        total += reward
        success = env.is_success()["task"]
        if done or success:
            break
    print(f"episode {episode}: {total:.2f} {success}")
