"""Pipelines of a user's own parts, and the files that combine them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import programs
import pytest
import torch
import yaml
from torch import nn

from offrl.__main__ import main
from offrl.config.pipeline import pipeline_config
from offrl.online import Agent, Algorithm, Environment, Pipeline, Registers
from offrl.pipelines.run import evaluate_pipeline, train_pipeline
from offrl.reports.records import read_records
from offrl.training.interrupts import Interrupts
from offrl.training.run import RunFolder

EXAMPLE = Path(__file__).parents[2] / "examples/registers"


@Registers.model
class LinearPolicy(nn.Module):
    def __init__(self, model_info):
        super().__init__()
        (state_dim,) = model_info["state_dim"]
        self.layer = nn.Linear(state_dim, model_info["action_dim"])

    def forward(self, x):
        return self.layer(x)


@Registers.model
class ArrayPolicy:
    """Of no framework at all."""

    def __init__(self, model_info):
        self.weights = [np.zeros((*model_info["state_dim"], model_info["action_dim"]))]

    def predict(self, state):
        return state @ self.weights[0]

    def train(self, state, action):
        self.weights[0] += 0.01 * state.mean(0)[:, None]

    def get_weights(self):
        return self.weights

    def set_weights(self, weights):
        self.weights = weights


@Registers.env
class Cart(Environment):
    def init_env(self, env_info):
        import gymnasium

        self.env = gymnasium.make(env_info["name"])


@Registers.env
class Counters(Environment):
    """Two agents count to their own ends; an action is what is counted by."""

    def init_env(self, env_info):
        self.ends = env_info["ends"]
        self.calls = []

    def reset(self):
        self.counts = [0.0] * len(self.ends)
        return [np.zeros(1) for _ in self.ends]

    def step(self, action, agent_index=0):
        self.calls.append(agent_index)
        self.counts[agent_index] += 1
        now = self.counts[agent_index]
        return np.full(1, now), 1.0 + agent_index, now == self.ends[agent_index], {}


@Registers.algorithm
class Plain(Algorithm):
    """What an algorithm has at least."""

    def prepare_data(self, train_data, **kwargs):
        self.data = train_data

    def train(self):
        if isinstance(self.actor, nn.Module):
            for parameter in self.actor.parameters():
                parameter.data += 0.01
        else:
            self.actor.train(self.data["state"], self.data["action"])
        return 0.5


@Registers.algorithm
class Full(Algorithm):
    """Every other hook, and what they are given."""

    def __init__(self, model_info, alg_config):
        super().__init__(model_info, alg_config)
        self.seen, self.trained = [], []

    def prepare_data(self, train_data, **kwargs):
        super().prepare_data(train_data, **kwargs)
        self.seen.append((kwargs["agent"], kwargs["explorer"]))

    def train_ready(self, total_count, **kwargs):
        return total_count % 3 == 0

    def train(self):
        self.trained.append(len(self.trajectories))
        self.trajectories.clear()
        with torch.no_grad():
            self.actor.layer.bias.fill_(len(self.trained))
        return {"loss": 1.0, "size": self.trained[-1]}

    def checkpoint_ready(self, train_count, **kwargs):
        return train_count % 2 == 0

    def update_weights_map(self, agent_in_group, agent_in_env):
        return self.alg_config.get("map", {})


@Registers.algorithm
class AskedForOne(Full):
    def update_weights_map(self, agent_in_group="agent_0", agent_in_env="agent_0"):
        return {"prefix": f"actor_{agent_in_env}", "name": "w"}


def test_a_map_may_be_asked_for_one_agent(pipeline):
    assert {*pipeline(**TWO, alg_para={"alg_name": "AskedForOne"}).algs} == {"agent_0", "agent_1"}


@Registers.agent
class Recording(Agent):
    def infer_action(self, state, use_explore):
        self.before = state
        return int(use_explore)

    def handle_env_feedback(self, next_raw_state, reward, done, info, use_explore):
        return {"seen": self.before, "reward": reward, "mine": np.ones(3)}


def content(**changes):
    said = {
        "alg_para": {"alg_name": "Plain"},
        "env_para": {"env_name": "Cart", "env_info": {"name": "CartPole-v1"}},
        "agent_para": {"agent_config": {"max_steps": 16}},
        "model_para": {"actor": {"model_name": "LinearPolicy", "state_dim": [4], "action_dim": 2}},
        "max_steps": 100,
    }
    return said | changes


TWO = {
    "env_para": {"env_name": "Counters", "env_info": {"ends": [3, 5]}},
    "agent_para": {"agent_name": "Recording", "agent_num": 2},
    "model_para": {"actor": {"model_name": "LinearPolicy", "state_dim": [1], "action_dim": 2}},
}


@pytest.fixture
def pipeline():
    made = []

    def make(**changes):
        made.append(Pipeline(pipeline_config(content(**changes))))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_an_algorithm_needs_two_methods(pipeline):
    one = pipeline(env_num=3)
    before = one.algs["agent_0"].get_weights()["layer.bias"].copy()
    records = list(one())
    data = one.algs["agent_0"].data
    assert {*data} == {"state", "action", "reward", "next_state", "done", "info"}
    num = len(data["state"])
    assert data["state"].shape == data["next_state"].shape == (num, 4) and num <= 16
    assert {*data["action"].tolist()} <= {0, 1} and data["reward"].tolist() == [1.0] * num
    assert [len(data["info"])] == [num] and not data["done"][:-1].any()
    np.testing.assert_array_equal(data["state"][1:], data["next_state"][:-1])
    trained = [r for r in records if r["type"] == "train"]
    assert one.step >= 100 and one.epoch == len(trained) and trained[0]["logs"] == {"Loss": 0.5}
    after = one.algs["agent_0"].get_weights()["layer.bias"]
    np.testing.assert_allclose(after - before, 0.01 * len(trained), rtol=1e-4)
    explorer = one.broker._explorers[0]  # acts by the weights of its turn
    assert explorer._version > 1


def test_an_agent_needs_two_methods(pipeline):
    one = pipeline(agent_para={"agent_name": "Recording", "agent_config": {"max_steps": 5}})
    list(one())
    data = one.algs["agent_0"].data
    assert {*data} == {"seen", "reward", "mine"} and data["mine"].shape[1:] == (3,)
    assert 0 < len(data["seen"]) <= 5


@Registers.agent
class Keeping(Agent):
    """It returns nothing."""

    def infer_action(self, state, use_explore):
        self.transition_data.update({"cur_state": state, "action": 1})
        return 1

    def handle_env_feedback(self, next_raw_state, reward, done, info, use_explore):
        self.transition_data["reward"] = reward / 2


def test_an_agent_may_keep_what_it_knows(pipeline):
    one = pipeline(agent_para={"agent_name": "Keeping", "agent_config": {"max_steps": 5}})
    list(one())
    data = one.algs["agent_0"].data
    assert {*data} == {"cur_state", "action", "reward"} and {*data["reward"].tolist()} == {0.5}
    assert (data["cur_state"][1:] != data["cur_state"][:-1]).any()


@pytest.mark.parametrize("name, info", [("CartPole-v1", {}), ("GymEnv", {"name": "CartPole-v1"})])
def test_offrls_parts_go_with_algorithms_of_ones_own(pipeline, name, info):
    actor = {"model_name": "MLP", "state_dim": [4], "action_dim": 2, "hidden_sizes": [8]}
    env = {"env_name": name, "env_info": info}
    one = pipeline(env_para=env, model_para={"actor": actor}, max_steps=40)
    list(one())
    assert one.epoch > 0 and one.algs["agent_0"].data["state"].shape[1] == 4
    assert one.algs["agent_0"].get_weights()["1.weight"].shape == (8, 4)


def test_a_model_of_no_framework(pipeline, tmp_path):
    actor = {"model_name": "ArrayPolicy", "state_dim": [4], "action_dim": 2}
    one = pipeline(model_para={"actor": actor})
    one.models = tmp_path
    list(one())
    weights = one.algs["agent_0"].get_weights()
    assert np.any(weights[0]) and len([*tmp_path.iterdir()]) <= 10
    other = pipeline(model_para={"actor": actor}, checkpoint=str(tmp_path))
    np.testing.assert_array_equal(other.algs["agent_0"].get_weights()[0], weights[0])


def test_the_hooks_say_when(pipeline, tmp_path):
    one = pipeline(alg_para={"alg_name": "Full"}, env_num=2)
    one.models = tmp_path
    records = list(one())
    alg = one.algs["agent_0"]
    assert alg.trained == [3] * one.epoch and one.epoch >= 2
    assert {seen for seen in alg.seen} == {("agent_0", 0), ("agent_0", 1)}
    assert [r["logs"] for r in records if r["type"] == "train"][0] == {"Loss": 1.0, "size": 3.0}
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"actor_{x:06d}.pth" for x in range(2, one.epoch + 1, 2)]
    assert one.version == 1 + one.epoch // 2
    one.save()
    assert (tmp_path / f"actor_{one.epoch:06d}.pth").exists()


def test_agents_in_one_environment_act_in_turn(pipeline):
    one = pipeline(**TWO, max_steps=8)
    list(one())
    (explorer,) = one.broker._explorers.values()
    assert explorer.env.calls == [0, 1, 0, 1, 0, 1, 1, 1]  # the first one is done before
    assert one.last[0] == ((3 * 1 + 5 * 2) / 2, 5, -1) and one.step == 8
    assert one.algs.keys() == {"agent_0"}  # which both share


@pytest.mark.parametrize(
    "weights_map, owners",
    [
        ({"agent_0": "agent_0"}, {"agent_0": "agent_0", "agent_1": "agent_1"}),
        ({"agent_0": "agent_1"}, {"agent_0": "agent_1", "agent_1": "agent_1"}),
        ({"prefix": "actor", "name": "w"}, {"agent_0": "agent_0", "agent_1": "agent_0"}),
        (
            {name: {"prefix": name, "name": "w"} for name in ("agent_0", "agent_1")},
            {"agent_0": "agent_0", "agent_1": "agent_1"},
        ),
    ],
)
def test_a_map_says_whose_weights_an_agent_uses(pipeline, tmp_path, weights_map, owners):
    config = {"alg_name": "Full", "alg_config": {"map": weights_map}}
    one = pipeline(**TWO, max_steps=100, alg_para=config)
    one.models = tmp_path
    list(one())
    assert {*one.algs} == {*owners.values()}
    for name, alg in one.algs.items():
        own = {agent for agent, owner in owners.items() if owner == name}
        assert {agent for agent, _ in alg.seen} == own
    (explorer,) = one.broker._explorers.values()
    explorer._states = {}
    weights = {name: alg.get_weights() for name, alg in one.algs.items()}
    one._publish()
    explorer.load(one.broker._weights)
    for agent, owner in owners.items():
        own = explorer.agents[agent].alg.get_weights()
        np.testing.assert_array_equal(own["layer.weight"], weights[owner]["layer.weight"])
    folder = tmp_path if len(one.algs) == 1 else tmp_path / "agent_0"
    assert [*folder.glob("*.pth")]
    again = pipeline(**TWO, alg_para=config, checkpoint=str(tmp_path))
    for name, alg in again.algs.items():
        np.testing.assert_array_equal(
            alg.get_weights()["layer.weight"], weights[name]["layer.weight"]
        )


def test_the_same_seed_gives_the_same_records(pipeline):
    def logs(seed):
        one = pipeline(train={"seed": seed}, env_num=2)
        return [(r["type"], r["step"], r["logs"]) for r in one()]

    assert logs(1) == logs(1) != logs(2)


def test_an_explorer_beside_the_training_evaluates(pipeline):
    one = pipeline(mode="train_with_evaluate", max_steps=300)
    kinds = [record["type"] for record in one()]
    assert "rollout" in kinds and "train" in kinds
    _, evaluator = one.broker._explorers.values()
    assert not evaluator._explores
    assert one.algs["agent_0"].data["state"].shape[1] == 4


def test_an_evaluation_explores_nothing():
    said = content(agent_para={"agent_name": "Recording"}, episodes=5, env_num=2)
    logs = evaluate_pipeline(pipeline_config(said))
    assert logs["Episodes"] == 5 and logs["Crashed"] == 0
    assert logs["Return"] < 12  # always the same push


@pytest.mark.parametrize(
    "change, message",
    [
        ({"alg_para": {"alg_name": "ppo"}}, "alg_para.alg_name: .*'ppo'.*Learner"),
        ({"alg_para": {"alg_name": "pp0"}}, "alg_para.alg_name: .*'pp0'.*Did you mean 'ppo'"),
        ({"alg_para": {"alg_name": "Plian"}}, "alg_para.alg_name: .*'Plian'.*'Plain'"),
        ({"env_para": {"env_name": "Carts"}}, "env_para.env_name: .*'Cart'"),
        ({"agent_para": {"agent_name": "X"}}, "agent_para.agent_name: .*Recording"),
        (
            {"model_para": {"actor": {"model_name": "Linear"}}},
            "model_para.actor.model_name: .*'Linear'.*'LinearPolicy'",
        ),
        ({"model_para": {"actor": {}}}, "model_para.actor: model_name"),
        ({"model_para": {}}, "model_para.actor"),
        ({"env_nums": 3}, "env_nums: .*env_num"),
        ({"alg_para": {"alg_name": "Full", "alg_config": {"map": "w"}}}, "weights_map gave 'w'"),
        ({"env_num": 0}, "env_num: "),
        ({"mode": "tain"}, "mode: .*'train'.*'evaluate'.*'train_with_evaluate'"),
        ({"agent_para": {"agent_config": {"max_steps": 0}}}, "max_steps: "),
        ({"modules": ["no_such_module"]}, "modules: .*'no_such_module'"),
        ({"checkpoint": "nowhere.pth"}, "nowhere.pth"),
        ({"alg_para": {"alg_name": "Plain", "alg_confg": {}}}, "alg_confg: .*alg_para.alg_config"),
    ],
)
def test_a_wrong_file_is_refused(pipeline, change, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        pipeline(**change)


def test_weights_of_another_shape_are_refused(pipeline, tmp_path):
    one = pipeline()
    name = one.algs["agent_0"].save(tmp_path, 1)
    actor = {"model_name": "LinearPolicy", "state_dim": [4], "action_dim": 3}
    with pytest.raises(ValueError, match=f"{name}: .*LinearPolicy"):
        pipeline(model_para={"actor": actor}, checkpoint=str(tmp_path / name))
    (tmp_path / name).write_bytes(b"no weights")
    with pytest.raises(ValueError, match=name):
        pipeline(checkpoint=str(tmp_path / name))


def test_a_part_must_be_what_it_is_entered_as(caplog):
    with pytest.raises(ValueError, match="agent Bad: .*offrl.online.Agent"):
        Registers.agent(type("Bad", (), {}))
    with pytest.raises(ValueError, match="environment Bad: .*init_env"):
        Registers.env(type("Bad", (Environment,), {}))
    Registers.model(type("Twice", (), {"__module__": "one"}))
    Registers.model(type("Twice", (), {"__module__": "other"}))
    assert "model Twice: that of other takes the place of one's" in caplog.text


@Registers.algorithm
class Breaking(Plain):
    trained = 0

    def train(self):
        self.trained += 1
        if self.trained == 3:
            raise ValueError("the gradient is gone")
        return super().train()


def test_no_record_says_that_steps_were_learned_from_before_they_were(pipeline):
    records = []
    with pytest.raises(ValueError, match="the gradient is gone"):
        for record in pipeline(alg_para={"alg_name": "Breaking"})():
            records.append(record["type"])
    assert [x for x in records if x != "progress"] == ["collect", "train"] * 2


@Registers.algorithm
class Undotted(Plain):
    """Names its checkpoints as it likes."""

    def save(self, model_path, model_index):
        torch.save(self.actor.state_dict(), model_path / f"weights-{model_index}")
        return [f"weights-{model_index}"]

    def restore(self, model_name=None, model_weights=None):
        self.actor.load_state_dict(torch.load(model_name))


@pytest.mark.slow
def test_a_run_goes_on_from_checkpoints_of_any_name(tmp_path):
    said = {"alg_para": {"alg_name": "Undotted"}, "train": {"output_dir": str(tmp_path)}}
    config = pipeline_config(content(**said))
    first = train_pipeline(config)
    run, _ = RunFolder.open(first.run.path)
    again = train_pipeline(config, run)
    assert again.checkpoint == first.checkpoint and first.checkpoint.name.startswith("weights-")


def test_a_kill_between_two_records_leaves_none_of_a_training_that_is_not_known(tmp_path):
    config = pipeline_config(content(train={"output_dir": str(tmp_path)}))
    metrics = train_pipeline(config).run.metrics
    lines = metrics.read_text().splitlines(keepends=True)
    while '"train"' not in lines.pop():
        pass  # the record that the kill kept from being written
    metrics.write_text("".join(lines))
    run, _ = RunFolder.open(metrics.parent)
    train_pipeline(config.model_copy(update={"max_steps": 200}), run)
    trained = [(r["type"], r["epoch"]) for r in read_records(metrics)[0][:-1]]
    expected = [(kind, epoch) for epoch in range(1, 20) for kind in ("collect", "train")]
    assert trained[-1][1] > 5 and trained == expected[: len(trained)]


@Registers.algorithm
class Curt(Plain):
    """Wants nothing to be said by name, and has one file, or one of somebody else's."""

    def prepare_data(self, train_data):
        super().prepare_data(train_data)

    def save(self, model_path, model_index):
        named = Path(self.alg_config.get("file", model_path / "last.pth"))
        named.write_text(str(model_index))
        return str(named)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_checkpoint_that_is_written_again_stays_as_one_elsewhere(
    is_elsewhere, pipeline, tmp_path
):
    said = {"file": str(tmp_path / "elsewhere.pth")} if is_elsewhere else {}
    one = pipeline(alg_para={"alg_name": "Curt", "alg_config": said}, max_steps=150)
    one.models = tmp_path / "models"
    list(one())
    (trained,) = one._num_trained.values()
    assert trained > 10 and one.checkpoint.read_text() == str(trained)


def test_of_two_algorithms_one_may_have_no_checkpoint_yet(pipeline, tmp_path):
    said = {"alg_name": "Full", "alg_config": {"map": {"agent_0": "agent_0"}}}
    one = pipeline(**TWO, alg_para=said)
    (tmp_path / "agent_0").mkdir()
    one.algs["agent_0"].actor.layer.bias.data.fill_(7)
    one.algs["agent_0"].save(tmp_path / "agent_0", 1)
    other = pipeline(**TWO, alg_para=said, checkpoint=str(tmp_path))
    assert other.algs["agent_0"].actor.layer.bias.tolist() == [7, 7]
    assert other.algs["agent_1"].actor.layer.bias.tolist() != [7, 7]


@Registers.algorithm
class Seldom(Plain):
    """Asks for no checkpoint; a signal does, after its third training."""

    trained = 0

    def train(self):
        self.trained += 1
        if self.trained == 3:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().train()

    def checkpoint_ready(self, train_count, **kwargs):
        return False


def test_a_signal_writes_a_checkpoint(tmp_path):
    said = {"alg_para": {"alg_name": "Seldom"}, "train": {"output_dir": str(tmp_path)}}
    with Interrupts() as interrupts:
        result = train_pipeline(pipeline_config(content(**said)), interrupts=interrupts)
    names = sorted(path.name for path in result.run.models.iterdir())
    assert names == ["actor_000003.pth", f"actor_{result.trainings:06d}.pth"]


@pytest.fixture
def project(tmp_path):
    """The example in a folder, with a small file."""
    (tmp_path / "mine.py").write_text((EXAMPLE / "mine.py").read_text())
    said = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    said["alg_para"]["alg_config"]["steps"] = 100
    said["max_steps"] = 400
    said["train"] = {"output_dir": str(tmp_path / "runs")}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(said))
    return tmp_path


def offrl(*words, **options):
    command = [sys.executable, "-m", "offrl", *map(str, words)]
    return programs.run(command, capture_output=True, text=True, check=False, **options)


BROKEN = """
import itertools
from mine import NewEnv, Registers

number = itertools.count()

@Registers.env
class Broken(NewEnv):
    def init_env(self, env_info):
        super().init_env(env_info)
        self.number = next(number)

    def reset(self):
        if self.number == 1 or self.number > 3:  # the second of four, and what replaces it
            raise OSError("the simulator is gone")
        return super().reset()
"""


@pytest.mark.slow
def test_the_others_go_on_where_an_environment_raises_at_every_reset(project):
    (project / "broken.py").write_text(BROKEN)
    words = ("--set", 'modules=["broken"]', "--set", "env_para.env_name=Broken")
    done = offrl("train", "--config", project / "run.yaml", *words)
    assert done.returncode == 1, done.stderr
    why = "OSError: the simulator is gone"
    assert f"explorer 1 was given up: {why}" in done.stdout and "broken.py, line" in done.stdout
    assert done.stderr.count(why) == 3 and "Traceback" not in done.stderr
    (run,) = (project / "runs/NewAlgorithm").iterdir()
    records, _ = read_records(run / "metrics.jsonl")
    assert records[-1]["step"] >= 400 and records[-1]["logs"]["Lost_Explorers"] == 1


@pytest.mark.slow
def test_a_run_is_trained_evaluated_and_gone_on_with(project):
    file = project / "run.yaml"
    done = offrl("train", "--config", file, "--mode", "train_with_evaluate")
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch \d+: return -?\d+\.\d+, length", done.stderr + done.stdout)
    (run,) = (project / "runs/NewAlgorithm").iterdir()
    assert (run / "run.yaml").read_text() == file.read_text()
    assert [*run.glob("learning_curve-*.png")] and [*(run / "logs/tb").iterdir()]
    before = read_records(run / "metrics.jsonl")[0]
    assert before[-1]["step"] >= 400
    figures = project / "figures.json"
    words = ("--checkpoint", run.parent, "--n", 3, "--json", figures)
    done = offrl("evaluate", "--config", file, *words)
    assert done.returncode == 0 and json.loads(figures.read_text())["Episodes"] == 3, done.stderr
    (config,) = run.glob("config-*.json")
    more = json.loads(config.read_text()) | {"max_steps": 700}
    config.write_text(json.dumps(more))
    done = offrl("train", "--resume", run, cwd=project)
    assert done.returncode == 0, done.stderr
    after = read_records(run / "metrics.jsonl")[0]
    assert after[: len(before)] == before and after[-1]["step"] >= 700
    assert after[-1]["epoch"] > before[-1]["epoch"]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["null", pytest.param("local", marks=pytest.mark.thorough)])
def test_a_run_that_is_stopped_keeps_what_was_trained(project, address):
    words = [f"distributed.address={address}", "max_steps=1000000", "env_num=2"]
    words = [word for setting in words for word in ("--set", setting)]
    command = [sys.executable, "-m", "offrl", "train", "--config", project / "run.yaml", *words]
    if address == "local":
        pytest.importorskip("ray")
    program = programs.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        end = time.monotonic() + 240
        while not [*project.glob("runs/*/*/models/*.pth")]:
            assert program.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        os.kill(program.pid, signal.SIGINT)
        _, said = program.communicate(timeout=240)
    finally:
        program.kill()
    assert program.returncode == 128 + signal.SIGINT and "train --resume" in said
    assert [*project.glob("runs/*/*/models/*.pth")]


def test_a_file_of_parts_is_known_by_alg_para(project, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = str(project / "run.yaml")
    assert main(["train", "--config", file, "--print-config"]) == 0
    assert json.loads(capsys.readouterr().out)["max_steps"] == 400
    assert main(["train", "--config", file, "--set", "agent_para.agent_name=NewAgnt"]) == 1
    assert "Did you mean 'NewAgent'?" in capsys.readouterr().err
    assert main(["evaluate", "--config", "bc.json"]) == 1
    assert "offrl rollout --checkpoint" in capsys.readouterr().err
    assert main(["evaluate", "--config", "bc.json", "--checkpoint", "bc.pth", "--n", "2"]) == 1
    assert "offrl rollout --checkpoint" in capsys.readouterr().err
    assert main(["evaluate", "--config", file, "--n", "1"]) == 0
    assert "no --checkpoint is given" in capsys.readouterr().err
    assert not (project / "runs").exists()


@pytest.mark.thorough
def test_the_example_learns(tmp_path):
    said = ("--output", tmp_path, "--config", "run.yaml", "--set", "max_steps=25000")
    done = offrl("train", *said, cwd=EXAMPLE)
    assert done.returncode == 0, done.stderr
    records = [r["logs"] for r in read_records(next(tmp_path.glob("*/*/metrics.jsonl")))[0]]
    assert max(logs.get("Return", 0) for logs in records) > 150  # a random policy reaches 22


def test_it_is_saved_and_described(tmp_path):
    config = pipeline_config(content(train={"output_dir": str(tmp_path)}, max_steps=300))
    result = train_pipeline(config)
    assert result.checkpoint.exists() and not result.problems
    assert len([*result.run.models.iterdir()]) == 10 < result.trainings
    assert str(result.run.path) in map(str, result.describe().values())
