"""What cannot be learned from ends the program with a line that says so."""

import json
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from conftest import acting_in

from offrl.__main__ import main
from offrl.envs.vector import form
from offrl.online import Agent, Trainer

SMALL = {"policy_layer_dims": [8], "value_layer_dims": [8]}


@pytest.fixture
def trained(tmp_path, capsys, monkeypatch):
    """A function: environment, algorithm, ``train.online`` -> exit status and last line."""
    monkeypatch.syspath_prepend(Path(__file__).parent)

    def train(env, algo_name="ppo", online=None, num_steps=100, **train):
        content = {
            "algo_name": algo_name,
            "experiment": acting_in(env, 50),
            "train": {
                "num_steps": num_steps,
                "output_dir": str(tmp_path / "runs"),
                "online": {"collect_steps": 10} | (online or {}),
                **train,
            },
            "algo": SMALL if algo_name == "ppo" else {},
        }
        path = tmp_path / "config.json"
        path.write_text(json.dumps(content))
        status = main(["train", "--config", str(path)])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        return status, said.splitlines()[-1] if said else ""

    return train


@pytest.mark.parametrize(
    "env, algo_name, says",
    [
        ("Pendulum-v1", "dqn", "its actions are real-valued, but dqn learns discrete ones"),
        ("CartPole-v1", "sac", "its actions are discrete, but sac learns real-valued ones"),
        ("odd_envs:Boundless-v0", "ppo", "its actions are Box(-inf, inf,"),
        ("odd_envs:FromFive-v0", "ppo", "its actions are Discrete("),
        ("odd_envs:Matrix-v0", "ppo", "its actions are Box(-1.0, 1.0, (2, 3), float32)"),
        ("odd_envs:Whole-v0", "ppo", "its actions are Box(-3, 3, (2,), int64)"),
        ("odd_envs:Numbered-v0", "ppo", "its observation 'flat' is Discrete(16)"),
        ("odd_envs:Unmade-v0", "ppo", "cannot be made: RuntimeError: no such robot"),
        ("odd_envs:TwoActions-v0", "ppo", "'action' is Tuple"),
        ("odd_envs:Empty-v0", "ppo", "of which networks see none"),
        ("odd_envs:Dotted-v0", "ppo", "rename observation 'arm.joint'"),
        ("odd_envs:NaNObs-v0", "ppo", "the observation 'flat' is NaN or infinite"),
        ("odd_envs:NaNReward-v0", "ppo", "the reward is NaN or infinite"),
        ("odd_envs:Grown-v0", "ppo", "has the shape [4], and its space says [3]"),
        ("CartPole-v2", "ppo", "Did you mean 'CartPole-v1'?"),
        ("puch-v3", "ppo", "Did you mean 'push-v3'?"),
        ("Liftt", "ppo", "Did you mean 'Lift'?"),
        ("HalfCheeta-v5", "ppo", "Did you mean 'HalfCheetah-v5'?"),
        ("ALE/Pog-v5", "ppo", "Did you mean 'ALE/Pong-v5'?"),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_what_does_not_fit_is_one_line(env, algo_name, says, num_envs, trained):
    if "ALE" in env:
        pytest.importorskip("ale_py")
    status, said = trained(env, algo_name, {"num_envs": num_envs})
    assert status == 1 and said.startswith("offrl: error: ") and says in said
    assert env.rpartition(":")[2] in said


@pytest.mark.slow
def test_an_episode_that_never_ends_is_one_line(trained, monkeypatch):
    monkeypatch.setattr(form, "LONGEST_EPISODE", 60)
    status, said = trained("odd_envs:Endless-v0")
    assert status == 1 and said.startswith("offrl: error: ") and "train.online.horizon" in said
    assert trained("odd_envs:Endless-v0", online={"horizon": 20})[0] == 0


def test_a_replay_beyond_the_memory_is_one_line(trained):
    online = {"replay": {"capacity": 10**13}}
    status, said = trained("CartPole-v1", "dqn", online, num_steps=10**13)
    assert status == 1 and said.startswith("offrl: error: train.online.replay.capacity: ")


def test_a_training_may_begin_without_random_steps(trained):
    status, _ = trained("CartPole-v1", "dqn", {"random_steps": 0}, batch_size=4)
    assert status == 0


@pytest.mark.parametrize(
    "env, module, extra",
    [("ALE/Pong-v5", "ale_py", "atari"), ("LunarLander-v3", "Box2D", "box2d")],
)
def test_a_missing_package_names_the_extra(env, module, extra, trained, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    status, said = trained(env)
    assert status == 1 and said.startswith("offrl: error: ")
    assert f"pip install 'offrl[{extra}]'" in said


def test_a_round_beyond_the_memory_is_one_line(trained):
    status, said = trained("CartPole-v1", online={"collect_steps": 10**10}, num_steps=10**11)
    assert status == 1 and "train.online.collect_steps: " in said and "are free; lower it" in said


def test_a_schedule_of_an_unknown_number_of_updates_is_one_line(tmp_path):
    rate = {"scheduler_type": "cosine", "step_every_batch": True}
    config = {"experiment": {"env": "CartPole-v1"}, "train": {"num_steps": 100}}
    config["algo"] = {**SMALL, "optim_params": {"policy": {"learning_rate": rate}}}
    with pytest.raises(ValueError, match="step_every_batch"):
        Trainer(config, algo_name="ppo")


def test_a_training_that_ends_before_it_learns_draws_what_there_is(trained, recwarn):
    pytest.importorskip("matplotlib")
    assert trained("Pendulum-v1", "sac", {"random_steps": 200})[0] == 0
    assert not any("legend" in str(warning.message) for warning in recwarn)


@pytest.mark.parametrize("algo_name", ["bc", "gl", "hbc"])
def test_what_learns_nothing_from_acting_is_refused(algo_name):
    with pytest.raises(ValueError, match=f"algo_name: {algo_name}"):
        Trainer(env_id="Pendulum-v1", algo_name=algo_name, num_steps=100)


@pytest.mark.parametrize(("num_steps", "said"), [(300, "2048 steps are made"), (4096, "")])
def test_rounds_that_are_longer_than_the_training_are_warned_of(caplog, num_steps, said):
    Trainer(env_id="Pendulum-v1", algo_name="ppo", num_steps=num_steps)
    assert said in caplog.text and ("train.num_steps" in caplog.text) is bool(said)


def test_a_training_that_never_learns_is_warned_of(caplog):
    config = {"train": {"online": {"random_steps": 1000}}}
    Trainer(config, env_id="Pendulum-v1", algo_name="sac", num_steps=1000)
    assert "nothing is learned in 1000 steps" in caplog.text
    caplog.clear()
    early = Trainer(env_id="Pendulum-v1", algo_name="sac", num_steps=1200)
    usual = Trainer(env_id="Pendulum-v1", algo_name="sac", num_steps=90_000)
    assert "nothing is learned" not in caplog.text
    assert [t.config.train.online.random_steps for t in (early, usual)] == [400, 10_000]


@pytest.mark.slow
def test_no_step_of_a_training_is_lost_to_the_ends_of_its_episodes():
    trainer = Trainer(env_id="CartPole-v1", algo_name="dqn", num_steps=900)
    for _ in trainer():
        pass
    assert len(trainer.buffer) == trainer.step >= 900


CARTPOLE = {"algo_name": "ppo", "experiment": {"env": "CartPole-v1"}, "algo": SMALL}


@pytest.mark.parametrize(
    "use, says",
    [
        (lambda agent: agent.play(gymnasium.make("Pendulum-v1")), r"'flat'.*\[3\]"),
        (
            lambda agent: agent.train(gymnasium.make("Acrobot-v1"), {"num_steps": 10}),
            r"'flat'.*\[4\].*Acrobot-v1.*\[6\]",
        ),
        (lambda agent: agent.append_state(np.zeros(3)), r"'flat'.*\[3\]"),
        (lambda agent: agent.append_state({"x": np.zeros(4)}), r"'flat'.*\bx\b"),
        (lambda agent: agent.predict(np.zeros(3)), r"'flat'.*\[3\]"),
        (lambda agent: agent.predict(np.zeros((2, 2, 4))), r"'flat'.*\[2, 4\]"),
        (lambda agent: agent.sample({"x": np.zeros((2, 4))}), r"'flat'.*\bx\b"),
        (
            lambda agent: Agent(CARTPOLE | {"algo_name": "dqn", "algo": {}}, agent.alg.model),
            "dqn",
        ),
        (lambda agent: Agent(CARTPOLE, device="gpu"), "device: .*'gpu'"),
    ],
)
def test_what_does_not_fit_an_agent_is_named(use, says):
    with pytest.raises(ValueError, match=says):
        use(Agent(CARTPOLE))


@pytest.mark.parametrize("mode", ["vector_entry_point", "sync"])
def test_a_trainer_acts_in_environments_that_are_given(mode):
    envs = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode=mode)
    online = {"collect_steps": 10}
    trainer = Trainer(CARTPOLE | {"train": {"num_steps": 20, "online": online}}, envs=envs)
    assert [r["type"] for r in trainer()].count("train") > 0
    assert trainer.envs.num_envs == 2 and trainer.env_args["env_name"] == "CartPole-v1"


def test_a_trainer_refuses_a_single_environment():
    with pytest.raises(ValueError, match="envs: .*CartPole"):
        Trainer(CARTPOLE, envs=gymnasium.make("CartPole-v1"))


def test_a_trainer_is_made_of_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CARTPOLE))
    assert Trainer(path, num_steps=5).config == Trainer(CARTPOLE, num_steps=5).config


@pytest.mark.parametrize(
    "algo_name, replay, says",
    [
        ("dqn", {"capacity": 3}, "3 observations of 2 environments hold no step to learn from"),
        ("ppo", {"prioritized": True}, "ppo learns from the steps of the round"),
        ("ppo", {"hindsight_share": 0.5}, "ppo learns from the steps of the round"),
    ],
)
def test_a_replay_that_cannot_be_is_one_line(algo_name, replay, says, trained):
    status, said = trained("CartPole-v1", algo_name, {"num_envs": 2, "replay": replay})
    assert status == 1 and "train.online.replay" in said and says in said


def test_what_is_no_config_is_named():
    with pytest.raises(ValueError, match=r"config: \[1, 2\]"):
        Trainer([1, 2], "CartPole-v1", "dqn")


class Levels(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        flat=gymnasium.spaces.Box(-1, 1, (3,)), level=gymnasium.spaces.Discrete(4)
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return {"flat": np.zeros(3, np.float32), "level": 1}, {}

    def step(self, action):
        return *self.reset()[:1], 0.0, False, False, {}


def test_observations_that_no_network_sees_may_be_numbers():
    envs = gymnasium.vector.SyncVectorEnv([Levels] * 2)
    with pytest.raises(ValueError, match=r"'level'.*Discrete\(4\)"):
        Trainer({"algo": SMALL}, algo_name="ppo", envs=envs)
    seen = {"observation": {"modalities": {"obs": {"low_dim": ["flat"]}}}}
    trainer = Trainer({"algo": SMALL, **seen}, algo_name="ppo", envs=envs)
    trainer.close()


def test_nothing_is_predicted_for_nan():
    trainer = Trainer({"algo": SMALL}, "CartPole-v1", "ppo")
    with pytest.raises(ValueError, match="'flat'.*NaN"):
        trainer.agent.predict(np.full(4, np.nan))
    trainer.close()
