"""Files of parts whose algorithm is one of offrl's own."""

import logging

import pytest

from offrl.config.pipeline import PipelineConfig, online_content
from offrl.config.pipeline import config_of as config_of_any
from offrl.online import Agent, Algorithm, Environment, Registers


@Registers.env
class Walk(Environment):
    def init_env(self, env_info): ...


@Registers.agent
class Walker(Agent): ...


@Registers.model
def walking(model_info): ...


def config_of(said):
    return config_of_any(online_content(said))


def content(alg_name="ppo", **changes):
    said = {
        "alg_para": {"alg_name": alg_name},
        "env_para": {"env_name": "CartPole-v1"},
        "model_para": {"actor": {"model_name": "MLP", "state_dim": [4], "action_dim": 2}},
        "env_num": 2,
        "max_steps": 500,
    }
    return said | changes


def test_it_is_an_online_training_by_explorers():
    agent = {"agent_config": {"max_steps": 64}}
    config = config_of(
        content(
            alg_para={"alg_name": "PPO", "alg_config": {"discount": 0.9, "batch_size": 32}},
            model_para={"actor": {"model_name": "PpoMlp", "hidden_sizes": [8]}},
            agent_para=agent,
            episodes=7,
            train={"seed": 5},
            distributed={"address": "local"},
        )
    )
    assert config.algo_name == "ppo" and config.experiment.env == "CartPole-v1"
    assert config.algo.discount == 0.9 and config.algo.policy_layer_dims == [8]
    train, distributed = config.train, config.distributed
    assert (train.num_steps, train.seed, train.batch_size) == (500, 5, 32)
    assert train.online.num_envs == 1 and train.online.collect_steps == 64
    assert (distributed.explorers, distributed.num_trajectories) == (2, 2)
    assert distributed.address == "local" and config.experiment.rollout.n == 7
    dqn = config_of(content("dqn", agent_para=agent, model_para={"actor": {"model_name": "dqn"}}))
    assert dqn.distributed.trajectory_steps == 64 and dqn.train.online.collect_steps == 4


def test_sizes_of_layers_leave_what_else_is_said_of_a_critic():
    config = config_of(
        content(
            alg_para={"alg_name": "dqn", "alg_config": {"critic": {"ensemble": {"n": 3}}}},
            model_para={"actor": {"model_name": "MLP", "hidden_sizes": [8]}},
        )
    )
    assert config.algo.critic.ensemble.n == 3 and config.algo.critic.layer_dims == [8]


def test_parts_of_ones_own_are_named_by_their_modules():
    config = config_of(
        content(
            env_para={"env_name": "Walk", "env_info": {"speed": 2}},
            agent_para={"agent_name": "Walker", "agent_config": {"mine": 3}},
        )
    )
    named = config.experiment.env_meta_update_dict
    assert named == {"type": f"{__name__}.Walk", "env_kwargs": {"speed": 2}}
    assert config.train.online.agent == f"{__name__}.Walker"
    assert config.train.online.agent_config == {"mine": 3}


def test_gymnasiums_are_named_as_other_toolkits_do():
    env = {"env_name": "GymEnv", "env_info": {"name": "Pendulum-v1", "g": 9.0, "vision": False}}
    experiment = config_of(content("sac", env_para=env)).experiment
    assert experiment.env == "Pendulum-v1"
    assert experiment.env_meta_update_dict == {"env_kwargs": {"g": 9.0}}


@pytest.mark.parametrize("alg_name", ["ppo", "Mine"])
def test_keys_of_performance_are_read_and_named(alg_name, caplog):
    with caplog.at_level(logging.WARNING):
        config = config_of(content(alg_name, speedup=True, benchmark={"id": "x"}))
    assert isinstance(config, PipelineConfig) == (alg_name == "Mine")
    assert "speedup, benchmark: not used" in caplog.text


def test_a_users_own_algorithm_of_that_name_comes_first():
    Registers.algorithm(type("dqn", (Algorithm,), {}))
    assert isinstance(config_of(content("dqn")), PipelineConfig)


@pytest.mark.parametrize(
    "change, says",
    [
        ({"alg_para": {"alg_name": "ppo", "alg_config": {"LR": 1}}}, "algo.LR: "),
        ({"agent_para": {"agent_num": 2}}, "agent_para.agent_num: "),
        ({"agent_para": {"agent_name": "CartpolePpo"}}, "agent_para.agent_name: .*'CartpolePpo'"),
        ({"model_para": {"actor": {"model_name": "DecisionTransformer"}}}, "model_name: .*own_net"),
        ({"model_para": {"actor": {"model_name": "walking"}}}, "model_name: .*own_network"),
        ({"mode": "evaluate"}, "mode: .*offrl rollout"),
        ({"env_nums": 3}, "env_nums: .*env_num"),
        ({"modules": "mine"}, "modules: .*list"),
        ({"modules": [3]}, "modules"),
        ({"modules": ["no_such_module"]}, "modules: .*'no_such_module'"),
        ({"train": {"batch_sise": 3}}, "train.batch_sise: .*batch_size"),
    ],
)
def test_a_wrong_file_is_refused(change, says):
    with pytest.raises(ValueError, match=says):
        config_of(content(**change))
