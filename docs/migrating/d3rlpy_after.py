"""Train and run the same policy with offrl."""

import argparse

from offrl import (
    config_factory,
    env_from_checkpoint,
    policy_from_checkpoint,
)
from offrl.training import train

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", required=True)
parser.add_argument("--env", default="Pendulum-v1")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

experiment = {
    "name": "pendulum",
    "env": args.env,
    "epoch_every_n_steps": args.steps,
    "rollout": {"n": 5, "horizon": 200, "rate": 1},
    "proxies": {"enabled": True},
    "save": {"on_best_rollout_return": True},
    "render_video": False,
}
rates = {"learning_rate": {"initial": 3e-4}}
config = config_factory(
    "iql",
    {
        "experiment": experiment,
        "train": {
            "data": args.dataset,
            "num_epochs": args.epochs,
            "batch_size": 256,
            "hdf5_normalize_obs": True,
            "action_config": {
                "actions": {"normalization": "min_max"}
            },
            "rewards": {"scale": 0.1},
        },
        "algo": {
            "discount": 0.99,
            "target_tau": 0.005,
            "optim_params": {
                "critic": rates,
                "vf": rates,
                "actor": rates,
            },
            "critic": {"layer_dims": [256, 256]},
            "actor": {"layer_dims": [256, 256]},
            "vf_quantile": 0.7,
            "adv": {"beta": 1 / 3.0},
        },
        "observation": {
            "modalities": {"obs": {"low_dim": ["flat"]}}
        },
    },
)
result = train(config)

policy, ckpt = policy_from_checkpoint(result.checkpoint)
env, _ = env_from_checkpoint(ckpt_dict=ckpt)
obs, _ = env.reset(seed=0)
policy.start_episode(seed=0)
total, ends = 0.0, [False]
while not any(ends):
    action = policy(obs)
    obs, reward, *ends, _ = env.step(action)
    total += reward
print(f"return {total:.0f}")
