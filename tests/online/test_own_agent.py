"""Agents and environments of a user's own, with offrl's algorithms."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import programs
import pytest
import yaml

from offrl.online import Agent, Environment, Learner, Registers
from offrl.reports.records import read_records

EXAMPLE = Path(__file__).parents[2] / "examples/registers"


@Registers.env
class Corridor(Environment):
    """It shows where one is, and is over after four steps."""

    def init_env(self, env_info):
        import gymnasium

        self.observation_space = gymnasium.spaces.Box(-9, 9, (1,))
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self):
        self.place = np.zeros(1, np.float32)
        self.length = 0
        return self.place

    def step(self, action, agent_index=0):
        self.place = self.place + 2 * action - 1
        self.length += 1
        return self.place, float(self.place[0]), self.length == 4, {"truncated": self.length == 4}


@Registers.agent
class Right(Agent):
    """It goes to the right, with what it was told of each step."""

    def __init__(self, env, alg, agent_config):
        super().__init__(env, alg, agent_config)
        self.told, self.said = [], []

    def infer_action(self, state, use_explore):
        self.said.append(self.alg.predict(state))
        self.transition_data.update({"cur_state": state, "action": 1})
        return self.agent_config.get("action", 1)

    def handle_env_feedback(self, next_raw_state, reward, done, info, use_explore):
        self.told.append((next_raw_state[0], reward, done, info))
        self.transition_data.update({"reward": 10 * reward} | self.agent_config.get("also", {}))


def learner(alg_name, algo=None, agent_config=None, **changes):
    said = {
        "alg_para": {"alg_name": alg_name, "alg_config": {"batch_size": 8, **(algo or {})}},
        "env_para": {"env_name": "Corridor"},
        "agent_para": {
            "agent_name": "Right",
            "agent_config": {"max_steps": 8, **(agent_config or {})},
        },
        "env_num": 2,
        "max_steps": 64,
        "train": {"online": {"collect_steps": 8, "random_steps": 0}},
    }
    return Learner(said | changes)


@pytest.mark.parametrize("alg_name", ["ppo", "dqn", "impala"])
def test_offrls_algorithms_learn_from_a_users_agents(alg_name):
    one = learner(alg_name)
    records = list(one())
    assert one.step == 64 and "train" in [r["type"] for r in records]
    explorer = one.broker._explorers[1]
    (agent,) = explorer.agent._own
    # Of success the environment says nothing.
    assert agent.told[:5] == [(n, n, n == 4, {"truncated": n == 4}) for n in (1, 2, 3, 4, 1)]
    assert {x.shape for x in agent.said} == {(2,)}
    ended = [r["logs"]["Return"] for r in records if "Return" in r["logs"]]
    assert {*ended} == {1.0 + 2 + 3 + 4}  # as the environment gave them
    if alg_name == "dqn":
        store = one.buffer.store
        rewards = store.columns["rewards"].array[np.flatnonzero(store.is_step)]
        assert {*rewards.ravel().tolist()} == {10.0, 20.0, 30.0, 40.0}
    one.close()


@Registers.agent
class Erasing(Right):
    """It writes to what it is shown."""

    def infer_action(self, state, use_explore):
        action = super().infer_action(state, use_explore)
        state *= 0
        return action

    def handle_env_feedback(self, next_raw_state, *rest):
        self.transition_data.pop("cur_state")
        next_raw_state *= 0


def test_what_an_agent_writes_to_is_its_own():
    one = learner("dqn", agent_para={"agent_name": "Erasing"})
    list(one())
    store = one.buffer.store
    places = store.columns["obs/flat"].array[np.flatnonzero(store.is_step)]
    assert {*places.ravel().tolist()} == {0.0, 1.0, 2.0, 3.0}
    one.close()


@Registers.agent
class Pushing(Agent):
    """Its actions are beyond the bounds, its arrays of another type than the environment's."""

    def infer_action(self, state, use_explore):
        self.transition_data.update(state=np.asarray(state, float), action=np.full(1, 2.3))
        return self.transition_data["action"]


def test_actions_are_clipped_and_arrays_may_be_of_other_types():
    env = {"env_name": "Pendulum-v1"}
    one = learner("td3", env_para=env, agent_para={"agent_name": "Pushing"}, max_steps=64)
    list(one())
    actions = one.buffer.store.columns["actions"].array[np.flatnonzero(one.buffer.store.is_step)]
    assert {*actions.ravel().tolist()} == {1.0}  # of -1 to 1
    one.close()


@pytest.mark.parametrize(
    "agent_config, says",
    [
        ({"action": 2}, "Right.*infer_action gave 2.*Discrete"),
        ({"action": 0.5}, "Right.*infer_action gave 0.5"),
        ({"also": {"action": 0}}, "Right.*'action'"),
        ({"also": {"done": True}}, "Right.*'done'"),
        ({"also": {"next_state": [0.5]}}, "Right.*'next_state'"),
        ({"also": {"reward": "nan"}}, "Right.*reward is 'nan'"),
        ({"also": {"state": "here"}}, "Right.*'here'"),
        ({"also": 3}, "Right.*TypeError.*test_own_agent.py"),
    ],
)
def test_what_an_agent_cannot_say_is_one_line(agent_config, says):
    one = learner("ppo", agent_config=agent_config)
    with pytest.raises(ChildProcessError, match=says):
        list(one())


def test_an_agent_of_states_needs_no_memory():
    with pytest.raises(ValueError, match="train.online.agent: .*memory"):
        learner("ppo", {"memory": {"enabled": True}})


SOLVES = {
    "discount": 0.98,
    "gae_lambda": 0.8,
    "num_passes": 20,
    "batch_size": 256,
    "optim_params": {"policy": {"learning_rate": {"initial": 1e-3}}},
}


@pytest.mark.parametrize(
    "address, num_steps",
    [
        pytest.param(None, 600, marks=pytest.mark.slow),
        # 40 and 20 s of processor time; a minute each where two processors are free.
        pytest.param(None, 40_000, marks=pytest.mark.thorough),
        pytest.param("local", 40_000, marks=pytest.mark.thorough),
    ],
)
def test_two_explorers_of_ones_own_solve_cartpole_by_ppo(address, num_steps, tmp_path):
    said = yaml.safe_load((EXAMPLE / "run.yaml").read_text())
    said["alg_para"] = {"alg_name": "ppo", "alg_config": SOLVES}
    said["model_para"] = {"actor": {"model_name": "MLP", "state_dim": [4], "action_dim": 2}}
    said["agent_para"]["agent_config"]["max_steps"] = 128
    said |= {"env_num": 2, "max_steps": num_steps, "distributed": {"address": address}}
    said |= {"experiment": {"epoch_every_n_steps": num_steps}, "episodes": 5}
    (tmp_path / "mine.py").write_text((EXAMPLE / "mine.py").read_text())
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(said))
    if address:
        pytest.importorskip("ray")
    command = [sys.executable, "-m", "offrl", "train", "--config", "run.yaml", "--output", "runs"]
    done = programs.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs/ppo").iterdir()
    (config,) = run.glob("config-*.json")
    assert json.loads(config.read_text())["train"]["online"]["agent"] == "mine.NewAgent"
    tested = [r for r in read_records(run / "metrics.jsonl")[0] if r["type"] == "test"]
    assert tested[0]["logs"]["Return"] > (400 if num_steps > 1000 else 0)
