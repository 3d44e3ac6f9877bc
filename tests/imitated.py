"""Tasks whose experts fit on a line, and what tests of learning from them share."""

import copy
import io

import gymnasium
import numpy as np
import torch

from offrl import algo_factory, config_factory
from offrl.acting.episode import EpisodeRequest, run_episode
from offrl.checkpoint import describe_policy, write_checkpoint
from offrl.data.writer import DemoWriter
from offrl.envs import make_env
from offrl.online import Trainer
from offrl.registry import EXPERTS
from offrl.seeding import rng_state, seed_everything, set_rng_state
from offrl.tree import merge

RATE = {"learning_rate": {"initial": 1e-3}}
NETS = {"critic": {"layer_dims": [32, 32]}}
RNN = {"enabled": True, "hidden_dim": 16, "horizon": 4}
SMALL = {
    "dagger": {
        "train": {"batch_size": 32, "online": {"collect_steps": 30, "num_updates": 10}},
        "algo": {"actor_layer_dims": [16, 16]},
    },
    "sqil": {
        "train": {"batch_size": 32, "online": {"random_steps": 20}},
        "algo": NETS | {"actor": {"layer_dims": [32, 32]}},
    },
    "discrete_sqil": {"train": {"batch_size": 32, "online": {"random_steps": 20}}, "algo": NETS},
    "gail": {"train": {"batch_size": 32, "online": {"collect_steps": 60}}},
}


class Place(gymnasium.Env):
    """A point in a plane that is to go to the origin and stay there, for 20 steps."""

    observation_space = gymnasium.spaces.Box(-3, 3, (2,))
    action_space = gymnasium.spaces.Box(-2, 2, (2,))
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        angle = self.np_random.uniform(0, 2 * np.pi)
        self.place = np.array([np.cos(angle), np.sin(angle)], dtype=np.float32)
        return self.place.copy(), {}

    def step(self, action):
        move = np.clip(action, -2, 2).astype(np.float32)
        self.place = np.clip(self.place + 0.1 * move, -3, 3)
        return self.place.copy(), -float(np.linalg.norm(self.place)), False, False, {}


PLACE, POLE = "imitated:Place-v0", "CartPole-v1"
gymnasium.register("Place-v0", "imitated:Place", max_episode_steps=20)


@EXPERTS.register(PLACE)
def go_there(obs):
    return np.clip(-10 * obs["flat"], -2, 2)


@EXPERTS.register(POLE)
def balance(obs):
    return int(obs["flat"] @ [0.1, 0.3, 3.0, 1.0] > 0)


def record(path, env_name, num, horizon=500, seed=0):
    """Demonstrations of a task by its expert."""
    args = {"env_name": env_name, "type": 2, "env_kwargs": {}}
    expert, env = EXPERTS[env_name], make_env(args)
    with DemoWriter(path, args, durable=False) as writer:
        for i in range(num):
            request = EpisodeRequest(seed + i, horizon, record=True)
            result = run_episode(env, request, lambda obs, *_: np.asarray(expert(obs)))
            writer.write(result.trajectory)
    return path


def mean_return(policy, env_name, num=10):
    """Of a ``Policy`` or a function in ``num`` episodes."""
    begin = getattr(policy, "start_episode", lambda: None)
    env = make_env({"env_name": env_name, "type": 2, "env_kwargs": {}})
    requests = [EpisodeRequest(1000 + i, 500) for i in range(num)]
    rewards = []
    for request in requests:
        begin()
        rewards.append(run_episode(env, request, lambda obs, *_: policy(obs)).total_reward)
    return np.mean(rewards)


def write_policy(path, name="bc", algo=None, obs=("flat",), shape=2, ac_dim=2, **train):
    """The checkpoint of a policy for ``Place`` that has learned nothing."""
    seed_everything(3)
    overrides = {"algo": algo or {}, "train": train}
    overrides["observation"] = {"modalities": {"obs": {"low_dim": list(obs)}}}
    config = config_factory(name, overrides)
    shapes = {key: (shape,) for key in obs}
    made = algo_factory(name, config, shapes, ac_dim, device="cpu")
    with torch.no_grad():  # so that it does not stand still
        for weight in made.nets.parameters():
            weight.mul_(3.0)
    write_checkpoint(path, describe_policy(made, config, None, shapes, ac_dim, {}, {}))
    return path


# -- trainings -----------------------------------------------------------------------------------


def make(name, env=PLACE, num_steps=None, **overrides):
    base = {
        "experiment": {"env": env},
        "train": {"cuda": False, "num_steps": num_steps or 10_000},
    }
    return Trainer(merge(merge(base, SMALL[name]), overrides), algo_name=name)


def rounds(trainer, num):
    for _ in range(num):
        last = list(trainer.round())[-1]
    return last


def as_row(obs):
    return {key: torch.as_tensor(x, dtype=torch.float32)[None] for key, x in obs.items()}


def state_of(trainer):
    """As it comes out of a checkpoint."""
    file = io.BytesIO()
    parts = {"model": trainer.alg.serialize(), "online": trainer.state(), "rng": rng_state()}
    torch.save(parts, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def go_on(trainer, state):
    trainer.alg.deserialize(state["model"])
    trainer.restore(state["online"])
    set_rng_state(state["rng"])


def resumed_equals_uninterrupted(new, num):
    whole = new()
    rounds(whole, num)
    state = state_of(whole)
    rounds(whole, num)
    later = new()
    go_on(later, state)
    rounds(later, num)
    ends = copy.deepcopy(whole.alg.nets.state_dict()), later.alg.nets.state_dict()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    assert torch.equal(rng_state()["torch"], state_of(later)["rng"]["torch"])
    assert np.array_equal(*(t.buffer.store.arrays["actions"] for t in (whole, later)))
