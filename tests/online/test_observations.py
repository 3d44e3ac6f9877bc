"""What environments show is brought into the form that networks see, or one line says how: by
wrappers that a config names, which stay with the policy."""

import json
import re
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

from offrl.envs import make_env
from offrl.envs.vector import GymnasiumVector, make_vector_env
from offrl.envs.wrappers import wrapped
from offrl.online import Agent, Environment, Trainer

FLATTEN = "gymnasium.wrappers.FlattenObservation"


@pytest.fixture(autouse=True)
def odd_envs_are_found(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


def config_of(env, observation=None, env_kwargs=None, **online):
    return {
        "algo_name": "ppo",
        "experiment": {
            "env": env,
            "env_meta_update_dict": {"env_kwargs": env_kwargs or {}},
            "rollout": {"n": 1, "horizon": 3},
        },
        "train": {"num_steps": 8, "batch_size": 4, "online": {"collect_steps": 4} | online},
        "algo": {"policy_layer_dims": [8], "value_layer_dims": [8]},
        "observation": {"modalities": {"obs": observation}} if observation else {},
    }


def trained(*arguments, **online):
    """The trainer after all of its steps."""
    with closing(Trainer(config_of(*arguments, **online))) as trainer:
        assert all(np.isfinite(record["logs"].get("loss", 0)) for record in trainer())
        return trainer


def test_what_no_network_sees_is_left_out(caplog):
    caplog.set_level("INFO", "offrl")
    trainer = trained("odd_envs:Talking-v0", {"low_dim": ["flat"]}, num_envs=2)
    assert [*trainer.envs.observation_space] == ["flat"]
    with pytest.raises(ValueError, match="'gauge' is NaN"):
        trained("odd_envs:Talking-v0")
    assert "'mission' is Text" in caplog.text and "'at' is Tuple" in caplog.text
    with pytest.raises(ValueError, match="modalities.obs.*no 'speed'; it shows .*mission"):
        trained("odd_envs:Talking-v0", {"low_dim": ["speed"]})
    with pytest.raises(ValueError, match="'mission' is Text"):
        trained("odd_envs:Talking-v0", {"low_dim": ["mission"]})


def test_agents_leave_out_what_no_network_sees():
    agent = Agent(config_of("odd_envs:Talking-v0", {"low_dim": ["flat"]}))
    with closing(Environment(agent.config)) as env:
        state = agent.append_state(env.reset()[0])
        agent.append_state(env.step(agent.action(state))[0])
    assert [*state] == ["flat"]


@pytest.mark.parametrize(
    ("shape", "dtype", "shown"),
    [
        ([16, 24, 3], "uint8", (16, 24, 3)),
        ([3, 16, 24], "uint8", (16, 24, 3)),
        ([48], "uint8", None),
        ([4, 6], "float32", None),
        ([16, 24], "uint8", "wrappers.Images"),
        ([16, 24], "float32", "wrappers.Images"),
        ([16, 24, 3], "float32", "wrappers.Images"),
        ([3, 16, 24], "float32", "wrappers.Images"),
        ([5, 16, 24], "uint8", "train.frame_stack"),
    ],
)
@pytest.mark.parametrize("key", [None, "image"])
def test_pixels_become_images_or_one_line_says_what_to_set(shape, dtype, shown, key):
    kwargs = {"shape": shape, "dtype": dtype, "key": key}
    config, name = config_of("odd_envs:Screen-v0", None, kwargs), key or "flat"
    if not isinstance(shown, str):
        with closing(Trainer(config)) as trainer:
            assert trainer.envs.observation_space[name].shape == (shown or tuple(shape))
            chosen = trainer.config.observation.modalities.obs
        assert chosen["rgb" if shown else "low_dim"] == [name]
        return
    with pytest.raises(ValueError, match=shown) as raised:
        Trainer(config)
    assert "\n" not in str(raised.value)
    if said := re.search(r"train.online.wrappers=(\[.*\])\. If", str(raised.value)):  # what helps
        config["train"]["online"]["wrappers"] = json.loads(said[1])
        with closing(Trainer(config)) as trainer:
            assert trainer.experiment.obs_shapes[name][1:] == (16, 24)
            assert trainer.envs.reset()[name].max() > 200
    as_vector = {"low_dim": [name]}
    with closing(Trainer(config_of("odd_envs:Screen-v0", as_vector, kwargs))) as trainer:
        assert trainer.experiment.obs_shapes[name] == tuple(shape)


def test_wrappers_are_put_around_a_given_environment_and_asked_of_a_given_vector():
    own, config = gymnasium.make("odd_envs:Numbered-v0"), config_of("odd_envs:Numbered-v0")
    config["train"]["online"]["wrappers"] = [FLATTEN]
    agent = Agent(config)
    assert agent.train(own)["Steps"] == 8
    assert agent.train(Environment(config))["Steps"] == 8
    vector = gymnasium.vector.SyncVectorEnv([lambda: own])
    with pytest.raises(ValueError, match="train.online.wrappers: environments that are given"):
        Trainer(config, envs=vector)


@pytest.mark.slow
def test_turned_images_are_turned_wherever_the_policy_acts():
    config = config_of("odd_envs:Screen-v0", None, {"shape": [3, 16, 16]}, num_envs=2)
    with closing(Trainer(config)) as trainer:
        described = trainer.describe()
        assert trainer.evaluate()["logs"]["Horizon"] == 3
    env = make_env(described["env_metadata"])
    own = env.unwrapped
    assert np.array_equal(env.reset(seed=0)[0]["flat"], np.moveaxis(own._observe(), 0, -1))
    with closing(Trainer(trainer.config, earlier=described)) as again:  # as a resumed run
        assert again.envs.observation_space["flat"].shape == (16, 16, 3)
    agent = Agent(config)
    with closing(Environment(agent.config)) as env:
        assert agent.append_state(env.reset()[0])["flat"].shape == (1, 16, 16, 3)


def test_a_policy_that_was_trained_on_pixels_as_a_vector_keeps_its_shapes():
    config = config_of("odd_envs:Screen-v0", {"low_dim": ["flat"]}, {"shape": [3, 8, 8]})
    with closing(Trainer(config)) as trainer:
        earlier, shapes = trainer.describe(), trainer.experiment.obs_shapes
    with closing(Trainer(trainer.config, earlier=earlier)) as again:
        assert again.experiment.obs_shapes == shapes == {"flat": (3, 8, 8)}


@pytest.mark.parametrize("num_envs", [1, 2])
def test_wrappers_of_a_config_stay_with_the_policy(num_envs):
    mine = {"wrapper": "odd_envs.Halved", "kwargs": {"factor": 0.25}}
    wrappers = [FLATTEN, mine]
    trainer = trained("odd_envs:Numbered-v0", num_envs=num_envs, wrappers=wrappers)
    assert trainer.experiment.obs_shapes == {"flat": (16,)}
    described = trainer.describe()
    env = make_env(described["env_metadata"])
    assert env.reset()[0]["flat"].tolist() == [0.25 * (i == 3) for i in range(16)]
    assert env.serialize()["wrappers"] == wrappers
    assert make_env(env.serialize()).reset()[0]["flat"].shape == (16,)
    assert trainer.evaluate()["logs"]["Horizon"] == 3


def test_a_vectorised_form_that_has_no_wrappers_is_not_taken():
    args = {"env_name": "CartPole-v1", "type": 2, "wrappers": [FLATTEN]}
    with closing(make_vector_env(args, 2, 0)) as vector:
        assert not isinstance(vector, GymnasiumVector)


class Simulator(gymnasium.Env):
    """Shows dicts by itself, and can do more than gymnasium asks for."""

    observation_space = Dict(object=Box(-1, 1, (2,)), other=Box(-1, 1, (2,)))
    action_space = Box(-1, 1, (2,))

    def reset(self, seed=None, options=None):
        return {"object": np.zeros(2, np.float32), "other": np.ones(2, np.float32)}, {}

    def is_success(self):
        return {"task": False}

    def serialize(self):
        return {"env_name": "mine", "type": "simulator", "env_kwargs": {}}


def test_wrappers_are_put_around_what_shows_dicts_by_itself():
    wrapper = {"wrapper": "gymnasium.wrappers.FilterObservation"}
    wrapper["kwargs"] = {"filter_keys": ["object"]}
    env = wrapped(Simulator(), [wrapper])
    assert [*env.reset(seed=0)[0]] == ["object"] == [*env.observation_space]
    assert env.is_success() == {"task": False} and not hasattr(env, "get_nothing")
    assert env.serialize() == Simulator().serialize() | {"wrappers": [wrapper]}


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        (["os.system"], "os.system.*gymnasium.*Wrapper"),
        (["odd_envs.NoWrapper"], "odd_envs.NoWrapper.*gymnasium.*Wrapper"),
        (["gymnasium.wrappers.Missing"], "wrappers.Missing"),
        (["Missing"], "'Missing'"),
        (["no_such_module.Wrapper"], "no_such_module"),
        ([{"wrapper": FLATTEN, "kwargs": {"size": 3}}], "FlattenObservation .*size"),
        (["gymnasium.wrappers.GrayscaleObservation"], "GrayscaleObservation"),
        (["odd_envs.Late"], "odd_envs.Late.*no package for it"),
    ],
)
def test_what_is_no_wrapper_or_does_not_fit_is_one_line(wrappers, words):
    with pytest.raises(ValueError, match=f"train.online.wrappers.*{words}") as raised:
        Trainer(config_of("odd_envs:NaNObs-v0", wrappers=wrappers))
    assert "\n" not in str(raised.value)
