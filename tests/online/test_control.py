"""Agents and environments of a config, in scripts."""

import json

import gymnasium
import numpy as np
import pytest
import torch

from offrl import config_factory, policy_from_checkpoint
from offrl.online import Agent, Algorithm, Environment, Model, Trainer
from offrl.training import Progress

CONFIG = {
    "algo_name": "ddpg",
    "experiment": {
        "env": "Pendulum-v1",
        "epoch_every_n_steps": 100,
        "save": {"every_n_epochs": 1},
        "rollout": {"n": 2, "horizon": 30},
    },
    "train": {
        "num_steps": 250,
        "seed": 3,
        "batch_size": 16,
        "online": {"random_steps": 20, "horizon": 50},
    },
    "algo": {"actor": {"layer_dims": [16]}, "critic": {"layer_dims": [16]}},
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def of(**train):
    return CONFIG | {"train": CONFIG["train"] | train}


def episode(agent, env, learns=True):
    """An episode that a script makes; how many updates were made, and how it ended."""
    state, over, num_updates = agent.append_state(env.reset()[0]), False, 0
    while not over:
        obs, agent.reward, terminated, truncated, _ = env.step(agent.action(state))
        state, over = agent.append_state(obs), terminated or truncated
        num_updates += bool(learns and agent.optimize())
    return num_updates, terminated


def test_an_agent_is_made_of_an_algorithm_or_of_a_config():
    class Net(Model):
        def action(self, x):
            return x.sum(-1, keepdim=True)

    class Rule(Algorithm):
        model = Net()

    class Mine(Agent):
        pass

    plain = Mine(Rule())
    assert isinstance(plain, Agent) and isinstance(Mine(CONFIG), Agent)
    assert plain.predict(np.ones(3, np.float32)) == [3.0]
    with pytest.raises(ValueError, match="play: .*Algorithm"):
        plain.play()


def test_agents_of_ones_own_have_attributes_of_any_names():
    class Mine(Agent):
        def __init__(self, env, alg, agent_config):
            super().__init__(env, alg, agent_config)
            self.config, self._policy = agent_config, alg

    assert Mine(object(), Algorithm(), {"max_steps": 8}).config == {"max_steps": 8}
    assert not hasattr(Agent(Algorithm()), "config")


def test_the_config_is_there_when_states_are_augmented_first():
    class Mine(Agent):
        def augment_state(self, state):
            return {key: x * self.config.train.seed for key, x in state.items()}

    assert Mine(CONFIG).config.train.seed == 3


def test_a_script_steps_and_the_agent_learns():
    env, agent = Environment(CONFIG), Agent(CONFIG)
    before = {key: x.clone() for key, x in agent.alg.nets.state_dict().items()}
    agent.reset()
    num_updates, _ = episode(agent, env)
    assert num_updates > 20 and agent.ep_reward < agent.reward < 0
    after = agent.alg.nets.state_dict()
    assert any(not torch.equal(x, after[key]) for key, x in before.items())
    agent.flash()
    assert agent.ep_reward == agent.reward == 0 and agent.state is not None
    agent.reset()
    assert agent.state is None


@pytest.mark.parametrize("terminated", [False, True])
def test_steps_by_hand_are_stored_as_they_were(terminated):
    env, agent = Environment(CONFIG), Agent(CONFIG)
    for _ in range(2):
        episode(agent, env, learns=False)
        agent.reset(terminated)
    agent.action(agent.append_state(env.reset()[0]))
    store = agent._session.trainer.buffer.store
    assert len(store) == 100, "two episodes of 50 steps"
    steps = np.flatnonzero(store.is_step)
    assert store.arrays["dones"][steps].sum() == (2 if terminated else 0)
    replayed = Environment(CONFIG)
    obs, _ = replayed.reset()
    for row in steps[:50]:
        assert np.array_equal(store.arrays["obs/flat"][row], obs["flat"])
        obs, reward, *_ = replayed.step(2 * store.arrays["actions"][row])  # torque of up to 2
        assert np.isclose(store.arrays["rewards"][row], reward, atol=1e-4)
    assert np.allclose(store.arrays["obs/flat"][steps[49] + 1], obs["flat"], atol=1e-4)


def test_states_are_stacked_after_the_hook(monkeypatch, capsys):
    class Sees(Agent):
        def augment_state(self, state):
            return {"flat": np.append(state["flat"], np.float32(state["flat"][0] ** 2))}

    agent, env = Sees(of(frame_stack=3)), Environment(CONFIG)
    first, _ = env.reset()
    state = agent.append_state(first)["flat"]
    assert state.shape == (3, 4) and (state == state[0]).all()
    second = env.step(np.zeros(1, np.float32))[0]
    later = agent.append_state(second)["flat"]
    assert np.array_equal(later[:2], state[1:]) and np.array_equal(later[2, :3], second["flat"])
    monkeypatch.setattr(Progress, "SECONDS_BETWEEN_LINES", -1)
    assert agent.train(env, {"num_steps": 100})["Steps"] == 100
    assert "epoch 1 of 1: return " in capsys.readouterr().out
    assert agent.play(env)["Horizon"] == 30


@pytest.mark.parametrize("kind", ["bool", "uint8", "uint16", "int32", "float64"])
def test_a_hook_gives_numbers_of_any_type(kind):
    class Rounded(Agent):
        def augment_state(self, state):
            return {"flat": (np.abs(state["flat"]) > 0.5).astype(kind)}

    agent = Rounded(of(online={"random_steps": 8}))
    episode(agent, Environment(CONFIG))
    assert agent.state["flat"].dtype == np.dtype(kind)


@pytest.mark.parametrize(
    "state, says",
    [
        (None, "object"),
        ("here", "<U4"),
        (np.full(3, np.nan), "NaN"),
        (np.ones(3, object), "object"),
    ],
)
def test_what_no_policy_can_act_on_is_refused_by_hand(state, says):
    agent = Agent(CONFIG)
    with pytest.raises(ValueError, match=f"observation 'flat' is {says}"):
        agent.append_state(state)


def test_a_hook_gives_a_dict():
    class Bare(Agent):
        def augment_state(self, state):
            return state["flat"]

    with pytest.raises(ValueError, match="augment_state gave ndarray"):
        Bare(CONFIG)


def test_without_exploring_the_same_state_has_the_same_action():
    agent, env = Agent(CONFIG), Environment(CONFIG)
    state = agent.append_state(env.reset()[0])
    assert np.array_equal(agent.action(state, True), agent.action(state, True))
    assert not np.array_equal(agent.action(state), agent.action(state))


def test_training_writes_its_files_and_playing_reads_them(tmp_path):
    config = tmp_path / "mine.json"
    config.write_text(json.dumps(CONFIG))
    agent, env = Agent(config), Environment(config)
    result = agent.train(env, gitsha="12345678", model_dest=tmp_path / "models")
    assert result["Steps"] == 250 and result["Episodes"] == 5 and not result["Solved"]
    names = {path.name for path in (tmp_path / "models").iterdir()}
    steps = {f"agent-{step:09d}-12345678.pth" for step in (100, 200, 250)}
    assert names == steps | {"agent-final-12345678.pth", "mine-12345678.json"}
    final = tmp_path / "models/agent-final-12345678.pth"
    policy_from_checkpoint(final)
    played = agent.play(env)
    assert played["n"] == 2 and played["Horizon"] == 30
    assert Agent(CONFIG, model_file=final, device="cpu").play(env) == played
    assert Agent(CONFIG, model=agent.alg.model).play() == played
    with pytest.raises(FileExistsError, match="train.model_dest"):
        agent.train(env, gitsha="12345678", model_dest=tmp_path / "models")
    with pytest.raises(ValueError, match="'ddpg'.*'sac'"):
        Agent(CONFIG | {"algo_name": "sac", "algo": {}}, model_file=final)


def test_training_ends_where_the_task_is_solved():
    env = Environment(of(online={"solved_episodes": 2, "horizon": 50}))
    assert env.env_solution is None
    env.env_solution = -1e9
    result = Agent(of(online={"solved_episodes": 2, "horizon": 50})).train(env)
    assert result["Solved"] and result["Steps"] == 100
    known = Environment({"algo_name": "dqn", "experiment": {"env": "CartPole-v1"}})
    assert known.env_solution == 475


def test_the_seed_of_the_config_decides_everything():
    def draws():
        env = Environment(CONFIG)
        obs, _ = env.reset()
        return [obs["flat"], env.action_space.sample(), np.random.rand(1), torch.rand(1).numpy()]

    assert all(np.array_equal(x, y) for x, y in zip(draws(), draws(), strict=True))


def test_an_environment_is_wrapped_in_place():
    env = Environment(CONFIG)
    env.update_env(gymnasium.wrappers.RescaleAction, min_action=-1.0, max_action=1.0)
    env.update_env(gymnasium.wrappers.TransformReward, func=lambda reward: reward + 100)
    assert env.action_space.high == 1 and env.observation_space["flat"].shape == (3,)
    env.reset()
    assert env.step(np.zeros(1, np.float32))[1] > 0
    assert env.is_success() == {"task": None} and env.serialize()["env_name"] == "Pendulum-v1"


def test_playing_without_a_display_films(tmp_path, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    env, agent = Environment(CONFIG, play=True), Agent(CONFIG)
    for _ in range(2):
        agent.play(env, {"n": 1, "horizon": 5}, gitsha="12345678")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"play-12345678.mp4", "play-12345678-2.mp4"}


@pytest.mark.slow
def test_who_says_last_what_solves_a_task_is_heard():
    few = {"solved_episodes": 2, "horizon": 50}
    solved, never = of(online=few | {"solved_return": -1e9}), {"online": {"solved_return": 1e9}}
    assert Agent(solved).train()["Solved"]
    assert Agent(solved).train(gymnasium.make("Pendulum-v1"))["Solved"]
    assert not Agent(solved).train(train_cfgs=never)["Solved"]
    env = Environment(solved)
    env.env_solution = None
    assert not Agent(solved).train(env)["Solved"]


@pytest.mark.slow
def test_learning_rates_move_with_the_epochs_of_a_training():
    rate = {"initial": 1e-3, "decay_factor": 0.5, "epoch_schedule": [1]}
    algo = {**CONFIG["algo"], "optim_params": {"critic": {"learning_rate": rate}}}
    agent = Agent(CONFIG | {"algo": algo})
    agent.train()
    assert agent.alg.optimizers["critic"].param_groups[0]["lr"] == pytest.approx(5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "save, num_steps", [({"enabled": False}, []), ({"every_n_seconds": 0}, [100, 200, 250])]
)
def test_checkpoints_are_kept_as_the_config_says(save, num_steps, tmp_path):
    save = {"every_n_epochs": None, **save}
    agent = Agent(CONFIG | {"experiment": {**CONFIG["experiment"], "save": save}})
    agent.train(gitsha="12345678", model_dest=tmp_path)
    kept = sorted(path.name for path in tmp_path.glob("agent-0*"))
    assert kept == [f"agent-{step:09d}-12345678.pth" for step in num_steps]


def test_episodes_are_tested_as_long_as_they_are_learned_from():
    def horizon(said=None, **train):
        experiment = {"env": "CartPole-v1", "rollout": {} if said is None else {"horizon": said}}
        content = {"algo_name": "dqn", "experiment": experiment, "train": train}
        found = Trainer(content).config.experiment.rollout.horizon
        assert (
            "num_steps" not in train
            or config_factory("dqn", content).experiment.rollout.horizon == found
        )
        return found

    assert horizon() == horizon(num_steps=10) > 500  # which is where CartPole ends an episode
    assert horizon(online={"horizon": 70}) == horizon(num_steps=10, online={"horizon": 70}) == 70
    assert horizon(30, num_steps=10, online={"horizon": 70}) == horizon(30) == 30
    assert config_factory("dqn").experiment.rollout.horizon == 400  # of data, as in robomimic


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algo_name", "memory"),
    [
        ("a2c", True),
        *((name, False) for name in ("reinforce", "ppo", "impala")),
        pytest.param("a2c", False, marks=pytest.mark.thorough),
        *(
            pytest.param(name, True, marks=pytest.mark.thorough)
            for name in ("reinforce", "ppo", "impala")
        ),
    ],
)
def test_a_script_may_learn_when_its_episode_is_over(algo_name, memory):
    algo = {"policy_layer_dims": [8], "value_layer_dims": [8], "memory": {"enabled": memory}}
    train = {"batch_size": 8, "online": {"collect_steps": 8}}
    cfgs = {"algo_name": algo_name, "experiment": {"env": "CartPole-v1"}, "train": train}
    agent, env = Agent({**cfgs, "algo": algo}), Environment(cfgs)
    buffer, waiting = agent._session.trainer.buffer, 0
    for _ in range(30):
        before = agent._session.trainer.step
        _, terminated = episode(agent, env, learns=False)
        agent.reset(terminated)
        waiting += agent._session.trainer.step - before
        kept = len(buffer)
        logs = agent.optimize()
        assert bool(logs) == (waiting >= 8 and kept > 0)
        if logs:
            assert np.isfinite(logs["loss"]) and kept <= 17 and len(buffer) == 0
            waiting = 0


def watched(alg):
    """The logarithms of the probabilities of the actions, as they are chosen; the networks are such
    that they depend much on the memory, and stay as they are."""
    with torch.no_grad():
        for weight in alg.nets["policy"].actor_head.parameters():
            weight.mul_(100)
    taken = []

    def explore(seen):
        pi, state = alg.action_distribution(seen.obs, seen.goal, seen.state)
        action = pi.at(-1).sample(None)
        taken.append(float(pi.log_prob(action[:, None])[0, 0]))
        return action, state

    alg.explore = explore
    return taken


def learned_rounds(trainer):
    """The same of each round, as they are learned from."""
    rounds, process = [], trainer.alg.process_batch_for_training

    def processed(batch):
        ready = process(batch)
        rounds.append(ready["log_probs"].flatten()[ready["mask"].flatten()].tolist())
        return ready

    trainer.alg.process_batch_for_training = processed
    trainer.alg.minibatches = lambda data: iter([data])
    trainer.agent.update = lambda batch, epoch=1: {"loss": 0.0}
    return rounds


WITH_MEMORY = {"memory": {"enabled": True, "hidden_dim": 8}}


@pytest.mark.parametrize("frame_stack", [1, 3])
@pytest.mark.parametrize("algo_name", ["ppo", "impala"])
def test_a_round_is_learned_from_with_the_memory_that_acted(algo_name, frame_stack):
    train = {"frame_stack": frame_stack, "online": {"num_envs": 1, "collect_steps": 4}}
    trainer = Trainer({"train": train, "algo": WITH_MEMORY}, "Pendulum-v1", algo_name, seed=3)
    taken, rounds = watched(trainer.alg), learned_rounds(trainer)
    for _ in range(4):
        list(trainer.round())
    np.testing.assert_allclose(np.concatenate(rounds), taken, rtol=1e-3, atol=1e-3)
    trainer.close()


@pytest.mark.parametrize("frame_stack", [1, 3])
def test_a_script_learns_from_its_rounds_with_the_memory_that_acted(frame_stack):
    config = {
        "algo_name": "ppo",
        "experiment": {"env": "CartPole-v1"},
        "train": {
            "num_steps": 1000,
            "seed": 1,
            "frame_stack": frame_stack,
            "online": {"collect_steps": 6},
        },
        "algo": WITH_MEMORY,
    }
    env, agent = Environment(config), Agent(config)
    taken, rounds = watched(agent.alg), learned_rounds(agent._session.trainer)
    for _ in range(3):
        agent.reset(episode(agent, env)[1])
    learned = np.concatenate(rounds)
    assert len(rounds) >= 4
    np.testing.assert_allclose(learned, taken[: len(learned)], rtol=1e-3, atol=1e-3)


def test_how_an_episode_ended_is_heard_once():
    env, agent = Environment(CONFIG), Agent(CONFIG)
    episode(agent, env)
    agent.reset(terminated=True)
    agent.play(test_cfgs={"n": 1, "horizon": 5})
    agent.reset()
    episode(agent, env)
    store = agent._session.trainer.buffer.store
    assert store.arrays["dones"][store.ends[0]] == 1


def test_a_script_learns_nothing_from_its_first_steps():
    config = of(batch_size=4, online={"random_steps": 10, "horizon": 25})
    env, agent = Environment(config), Agent(config)
    assert episode(agent, env)[0] == 25 - 10 - 1  # the last step is not known to be one
    assert agent.optimize()


def test_a_second_training_goes_on_with_the_statistics_of_the_first(tmp_path):
    online = {"normalize_obs": True, "normalize_rewards": True, "horizon": 25}
    config = of(num_steps=50, online=online)
    agent = Agent(config)
    agent.train(model_dest=tmp_path, gitsha="12345678")
    first = agent._session.trainer.statistics.moments()
    assert first["obs"]["flat"]["count"] == first["returns"]["count"] == 50
    agent.train(train_cfgs={"num_steps": 30})
    second = agent._session.trainer.statistics.moments()
    assert second["obs"]["flat"]["count"] == second["returns"]["count"] == 80
    other = Agent(config, model_file=tmp_path / "agent-final-12345678.pth")
    assert other._session.trainer.statistics.moments()["obs"]["flat"]["count"] == 50
    np.testing.assert_allclose(
        other.alg.obs_normalizer.stats["flat"]["offset"][0], first["obs"]["flat"]["mean"], 1e-5
    )


CARTPOLE = {
    "algo_name": "dqn",
    "experiment": {"env": "CartPole-v1"},
    "train": {"batch_size": 16, "online": {"random_steps": 0}},
    "algo": {"critic": {"layer_dims": [8]}},
}


def test_a_state_that_is_set_is_appended():
    env, agent = Environment(CARTPOLE), Agent(CARTPOLE)
    obs, _ = env.reset()
    agent.state = obs
    assert np.array_equal(agent.state["flat"], obs["flat"][None])
    before = agent.state
    agent.state = agent.append_state(env.step(agent.action(agent.state))[0])
    assert agent.state is not before and agent._session.trainer.step == 0
    agent.action(agent.state)
    assert agent._session.trainer.step == 1


def test_the_last_step_counts_though_nobody_appended_what_followed(caplog):
    env, agent = Environment(CARTPOLE), Agent(CARTPOLE)
    num_steps = 0
    for _ in range(5):
        (obs, _), over = env.reset(), False
        while not over:
            obs, agent.reward, terminated, over, _ = env.step(agent.action(obs))
            num_steps, over = num_steps + 1, over or terminated
        agent.reset(terminated)
    agent.action(env.reset()[0])
    buffer = agent._session.trainer.buffer
    assert len(buffer) == num_steps and buffer.store.arrays["dones"].sum() == 5
    assert not caplog.text


def test_a_step_that_is_lost_is_warned_of_once(caplog):
    env, agent = Environment(CARTPOLE), Agent(CARTPOLE)
    with pytest.raises(ValueError, match="'flat'"):
        agent.action(agent.state)  # before the first observation
    for _ in range(3):
        agent.action(env.reset()[0])
        agent.reset()
    assert caplog.text.count("its last step is not learned from") == 1


@pytest.mark.slow
def test_sections_may_come_in_whole_configs(tmp_path):
    config = tmp_path / "more.json"
    config.write_text(json.dumps({"algo_name": "ddpg", "train": {"num_steps": 100}}))
    agent = Agent(CONFIG)
    for given in (config, {"train": {"num_steps": 100}}, {"num_steps": 100}):
        assert agent.train(None, given)["Steps"] == 100
    played = agent.play(None, {"experiment": {"rollout": {"n": 1, "horizon": 5}}})
    assert played["Horizon"] == 5


def test_a_commit_is_shortened_and_must_be_a_name(tmp_path):
    agent = Agent(CONFIG, log_level=20)
    agent.train(None, {"num_steps": 100}, "0123456789abcdef", tmp_path)
    assert (tmp_path / "agent-final-01234567.pth").exists()
    with pytest.raises(ValueError, match="gitsha: 'abc/def'"):
        agent.train(None, {"num_steps": 100}, "abc/def", tmp_path)


def test_an_environment_may_be_changed_in_place():
    env = Environment(CONFIG)
    env.update_env(lambda inner, g: setattr(inner.unwrapped, "g", g), g=1.0)
    assert env.unwrapped.g == 1.0


@pytest.mark.parametrize("algo_name", ["dqn", "ppo"])
def test_rewards_of_steps_by_hand_are_normalised(algo_name):
    online = {"random_steps": 0, "normalize_rewards": True, "collect_steps": 16}
    config = {"algo_name": algo_name, "experiment": {"env": "CartPole-v1"}}
    config["train"] = {"batch_size": 16, "online": online}
    env, agent = Environment(config), Agent(config)
    for _ in range(3):
        episode(agent, env)
        agent.reset(True)
    statistics = agent._session.trainer.statistics
    assert statistics._returns.count > 10 and len(statistics._received) <= 16
    assert statistics.rewards(torch.ones(1)) != 1
