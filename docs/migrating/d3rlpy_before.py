"""Train and run a policy with d3rlpy."""

import argparse

import d3rlpy
import gymnasium
import h5py
from d3rlpy.metrics import (
    EnvironmentEvaluator,
    TDErrorEvaluator,
)
from d3rlpy.preprocessing import (
    MinMaxActionScaler,
    MultiplyRewardScaler,
    StandardObservationScaler,
)

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", required=True)
parser.add_argument("--env", default="Pendulum-v1")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

KEYS = "observations actions rewards terminals timeouts"
with h5py.File(args.dataset) as file:
    arrays = {key: file[key][()] for key in KEYS.split()}
dataset = d3rlpy.dataset.MDPDataset(**arrays)
env = gymnasium.make(args.env)

iql = d3rlpy.algos.IQLConfig(
    batch_size=256,
    gamma=0.99,
    tau=0.005,
    actor_learning_rate=3e-4,
    critic_learning_rate=3e-4,
    expectile=0.7,
    weight_temp=3.0,
    observation_scaler=StandardObservationScaler(),
    action_scaler=MinMaxActionScaler(),
    reward_scaler=MultiplyRewardScaler(0.1),
).create()
iql.fit(
    dataset,
    n_steps=args.epochs * args.steps,
    n_steps_per_epoch=args.steps,
    experiment_name="pendulum",
    evaluators={
        "return": EnvironmentEvaluator(env, n_trials=5),
        "td_error": TDErrorEvaluator(),
    },
)
iql.save("pendulum.d3")

iql = d3rlpy.load_learnable("pendulum.d3")
obs, _ = env.reset(seed=0)
total, ends = 0.0, [False]
while not any(ends):
    action = iql.predict(obs[None])[0]
    obs, reward, *ends, _ = env.step(action)
    total += reward
print(f"return {total:.0f}")
