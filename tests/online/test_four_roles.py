"""The four roles under their names: models, algorithms, agents, trainers, and a user's own."""

import copy
import importlib
import runpy
import shutil
import sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import programs
import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from offrl.acting.policy import RolloutPolicy
from offrl.algos import Algo
from offrl.algos.shared.weights import to_act
from offrl.config import AlgoConfig
from offrl.envs.vector import GymnasiumVector
from offrl.online import Agent, Algorithm, Model, Trainer, logger, register_roles
from offrl.online.agent import PolicyAgent
from offrl.registry import ALGO_CONFIGS, ALGOS
from offrl.seeding import rng_state, set_rng_state
from offrl.tree import leaves

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL_DQN = {
    "train": {"batch_size": 16, "online": {"collect_steps": 4, "random_steps": 8}},
    "algo": {"critic": {"layer_dims": [16, 16]}},
}


SMALL_ROLES = {"train": {"online": {"collect_steps": 4}}}


@pytest.fixture
def trainer():
    trainer = Trainer(SMALL_DQN, env_id="CartPole-v1", algo_name="dqn")
    yield trainer
    trainer.close()


def test_an_algo_is_the_algorithm_of_the_chain(trainer):
    alg, model = trainer.agent.alg, trainer.agent.alg.model
    assert isinstance(alg, (Algo, Algorithm)) and isinstance(alg, Algo)
    assert isinstance(trainer.agent, Agent) and isinstance(model, Model)
    obs = torch.randn(5, 4)
    assert torch.equal(model.action(obs), alg.predict(obs))
    values = torch.stack([model.value(obs, torch.full((5,), a))[:, 0] for a in range(2)], dim=1)
    assert torch.equal(values.argmax(1), alg.predict(obs))
    assert torch.equal(model.value(obs)[:, 0], values.amax(1))
    assert {id(p) for p in model.parameters()} == {id(p) for p in alg.nets.parameters()}


def test_nothing_is_done_before_the_first_record(trainer):
    records = trainer()
    assert trainer.step == trainer.agent.num_steps == len(trainer.buffer) == 0
    record = next(records)
    assert record["type"] == "collect" and trainer.step == record["step"] == 4
    assert len(trainer.buffer) == 4


def test_each_part_of_the_control_flow_gives_its_record(trainer):
    before = [p.clone() for p in trainer.alg.nets.parameters()]
    for _ in range(5):
        collected = trainer._run_collect()
    assert len(trainer.buffer) == 20 and collected["type"] == "collect"
    trained = trainer._run_train()
    assert trained["type"] == "train" and np.isfinite(trained["logs"]["loss"])
    assert trained["step"] == 20
    after = list(trainer.alg.nets.parameters())
    assert not all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("algo_name", ["ppo", "impala", "reinforce"])
def test_a_round_that_was_not_learned_from_is_forgotten(algo_name):
    train = {"online": {"collect_steps": 20}}
    trainer = Trainer({"train": train}, "CartPole-v1", algo_name, seed=1)
    for _ in range(4):
        trainer._run_collect()
        assert len(trainer.buffer) == 20
    assert trainer.step == 80 and trainer._batch is None
    assert np.isfinite(trainer._run_train()["logs"]["loss"])
    trainer.close()


def test_the_same_seed_gives_the_same_records():
    def logs(seed):
        trainer = Trainer(SMALL_DQN, "CartPole-v1", "dqn", num_steps=60, seed=seed)
        return [(r["type"], r["step"], r["logs"]) for r in trainer()]

    assert logs(3) == logs(3) != logs(4)


@pytest.mark.filterwarnings("error:Creating a tensor from a list")
@pytest.mark.parametrize(
    "algo_name, env_id", [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"), ("sac", "Pendulum-v1")]
)
def test_predict_is_greedy_and_sample_explores(algo_name, env_id):
    trainer = Trainer(env_id=env_id, algo_name=algo_name)
    agent, space = trainer.agent, trainer.envs.action_space
    obs = trainer.envs.reset()["flat"][0]
    for some in (obs, [obs] * 6, np.stack([obs] * 6)):
        best = agent.predict(some)
        assert np.array_equal(best, agent.predict(some))
        sampled = agent.sample(some)
        assert best.shape == sampled.shape == np.shape(some)[:-1] + space.shape
    assert agent.num_steps == 13
    np.testing.assert_allclose(agent.predict(np.stack([obs] * 6)), [agent.predict(obs)] * 6, 1e-4)
    assert len(np.unique(agent.sample(np.stack([obs] * 200)))) > 1
    assert all(space.contains(action) for action in agent.sample(np.stack([obs] * 50)))
    trainer.close()


def test_an_agent_learns_from_numpy(trainer):
    rng = np.random.default_rng(0)
    data = {
        "obs": {"flat": rng.standard_normal((8, 1, 4)).astype(np.float32)},
        "next_obs": {"flat": rng.standard_normal((8, 1, 4)).astype(np.float32)},
        "actions": np.eye(2, dtype=np.float32)[rng.integers(2, size=(8, 1))],
        "rewards": rng.random((8, 1)).astype(np.float32),
        "dones": np.zeros((8, 1), dtype=np.float32),
    }
    losses = [trainer.agent.learn(data)["loss"] for _ in range(40)]
    assert losses[-1] < losses[0]


def test_a_decorated_trainer_gives_the_same_records_and_writes_them(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def told():
        trainer = Trainer(SMALL_DQN, "CartPole-v1", "dqn", num_steps=60)
        return [(r["type"], r["step"], r["logs"]) for r in trainer()]

    plain = told()
    monkeypatch.setattr(Trainer, "__call__", logger(Trainer.__call__, tmp_path))
    assert told() == plain
    assert told() == plain  # into a folder of its own
    first, _ = sorted(tmp_path.iterdir())
    events = EventAccumulator(str(first)).Reload()
    written = [scalar.value for scalar in events.Scalars("Train/loss")]
    np.testing.assert_allclose(written, [r[2]["loss"] for r in plain if r[0] == "train"], rtol=1e-6)


# -- a user's own ---------------------------------------------------------------------------------


def test_the_example_is_short():
    assert len((EXAMPLES / "four_roles.py").read_text().splitlines()) < 150


@pytest.mark.slow
def test_the_program_trains_resumes_and_evaluates_a_users_roles(tmp_path):
    for name in ("four_roles.py", "four_roles.json"):
        shutil.copy(EXAMPLES / name, tmp_path)

    def offrl(*arguments):
        return programs.run(
            [sys.executable, "-m", "offrl", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )

    settings = (
        "train.num_steps=1024 experiment.epoch_every_n_steps=512 experiment.rollout.n=2 "
        "experiment.rollout.rate=100 experiment.render_video=false train.online.num_updates=1 "
        "train.online.random_steps=300"
    ).split()
    trained = offrl(
        "train",
        "--config",
        "four_roles.json",
        *(word for setting in settings for word in ("--set", setting)),
    )
    assert trained.returncode == 0, trained.stderr
    run = next((tmp_path / "runs" / "four_roles").iterdir())
    assert (run / "last.pth").is_file()
    kinds = {line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()}
    assert {"collect", "train", "epoch", "rollout", "test"} <= kinds
    rollout = ("rollout", "--checkpoint", str(run / "last.pth"), "--n", "2")
    assert "--module four_roles" in offrl(*rollout).stderr
    rolled = offrl(*rollout, "--module", "four_roles")
    assert rolled.returncode == 0 and "return" in rolled.stdout, rolled.stderr


def test_the_same_plain_name_stays_offrls_own(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("four_roles")
    own = ALGO_CONFIGS["dqn"]
    theirs = ALGO_CONFIGS["four_roles.dqn"]
    assert theirs.__module__ == "four_roles" and own.__module__ == "offrl.algos.dqn"
    assert ALGO_CONFIGS["dqn"] is own
    assert ALGOS["four_roles.dqn"](theirs())[0].__module__ == "four_roles"
    assert ALGOS["dqn"](own())[0].__module__ == "offrl.algos.dqn"


@pytest.mark.slow
def test_a_users_roles_resume_bit_exactly(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    importlib.import_module("four_roles")
    config = {"train": {"batch_size": 8, "online": {"collect_steps": 8, "random_steps": 16}}}
    make = ALGOS["four_roles.dqn"](ALGO_CONFIGS["four_roles.dqn"]())[0].TRAINER
    one = make(config, env_id="CartPole-v1", algo_name="four_roles.dqn")
    for _ in range(10):
        list(one.round())
    model, state, rng = copy.deepcopy(one.alg.serialize()), one.state(), rng_state()
    last = [list(one.round()) for _ in range(10)][-1][-1]
    other = make(config, env_id="CartPole-v1", algo_name="four_roles.dqn")
    other.alg.deserialize(to_act(model))
    again = leaves(other.alg.serialize())
    for name, leaf in leaves(model).items():
        np.testing.assert_array_equal(again[name], leaf, err_msg=name)
    other.restore(state)
    set_rng_state(rng)
    assert [list(other.round()) for _ in range(10)][-1][-1]["logs"] == last["logs"]


@pytest.mark.slow
def test_the_example_runs_as_a_script(monkeypatch, capsys):
    # It registers its roles under the name that it also asks for.
    monkeypatch.setattr(Trainer, "__call__", lambda self: iter(self.round()))
    monkeypatch.syspath_prepend(EXAMPLES)
    runpy.run_path(str(EXAMPLES / "four_roles.py"), run_name="__main__")
    assert "return" in capsys.readouterr().out


def test_policy_agents_keep_frames_and_forget_them_where_episodes_begin():
    config = {"train": {"frame_stack": 3}, "algo": {"policy_layer_dims": [8]}}
    trainer = Trainer(config, env_id="CartPole-v1", algo_name="ppo")
    agent = trainer.agent
    assert isinstance(agent, PolicyAgent)
    shown = [{"flat": np.full((2, 4), float(i), dtype=np.float32)} for i in range(5)]
    seen = [agent._last_frames(obs, None)["flat"][:, :, 0].copy() for obs in shown[:4]]
    assert seen[0].tolist() == [[0, 0, 0]] * 2 and seen[3].tolist() == [[1, 2, 3]] * 2
    begins = np.array([True, False])
    assert agent._last_frames(shown[4], begins)["flat"][:, :, 0].tolist() == [[4, 4, 4], [2, 3, 4]]


def test_an_evaluation_is_a_record_that_changes_nothing(trainer):
    trainer.config.experiment.rollout.n = 2
    twin = Trainer(trainer.config)
    list(trainer.round())
    record = trainer.evaluate()
    assert record["type"] == "rollout" and record["step"] == trainer.step
    assert record["logs"]["n"] == 2 and record["logs"]["Return"] > 0
    assert trainer.evaluate()["logs"] == record["logs"]
    list(twin.round())
    for one, other in zip(trainer.round(), twin.round(), strict=True):
        assert {**one, "time": 0} == {**other, "time": 0}
    trainer.close()


def test_a_round_in_which_episodes_only_begin_is_not_learned_from():
    vector = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])  # NEXT_STEP
    train = {"num_steps": 60, "online": {"collect_steps": 1}}
    config = {"train": train, "algo": {"policy_layer_dims": [8], "value_layer_dims": [8]}}
    trainer = Trainer(config, "CartPole-v1", "a2c", envs=GymnasiumVector(vector, 0))
    rounds = []
    while trainer.step < 60:
        before = trainer.step
        kinds = [record["type"] for record in trainer.round()]
        rounds.append((trainer.step - before, kinds))
    assert all(kinds == ["collect"] + ["train"] * (taken > 0) for taken, kinds in rounds)
    assert len(rounds) > 60  # some had no step


class OwnConfig(AlgoConfig):
    ALGO_NAME = "constant"


class Constant(Model):
    """Acts alike everywhere, with a torque of 1."""

    def __init__(self, obs_dim, ac_dim, config):
        super().__init__()
        self.layer = torch.nn.Linear(obs_dim, ac_dim)

    def action(self, x):
        self.seen = x
        return torch.ones(len(x), 1)


class Own(Algorithm):
    LOSS = "loss"

    def __init__(self, model, config):
        self.model = model

    def learn(self, data):
        self.data = data
        return {self.LOSS: torch.zeros(())}


@pytest.fixture
def own():
    """A function: what differs from the defaults -> a trainer of own roles on Pendulum."""
    register_roles(OwnConfig, Constant, Own)

    def make(**train):
        said = {"batch_size": 4, **train}
        return Trainer({"train": said}, env_id="Pendulum-v1", algo_name=f"{__name__}.constant")

    return make


def test_real_valued_actions_of_own_roles_are_those_of_the_environment(own, monkeypatch):
    trainer, taken = own(), []
    step = trainer.envs.step
    monkeypatch.setattr(trainer.envs, "step", lambda raw: taken.append(raw) or step(raw))
    for _ in range(3):
        list(trainer.round())
    assert np.all(taken == np.ones((1, 1)))
    assert (trainer.alg.written.data["actions"] == 1).all()
    assert (trainer.buffer.store.arrays["actions"][:3] == 0.5).all()  # between -2 and 2
    policy = RolloutPolicy(trainer.alg)
    policy.start_episode()
    zeros = np.zeros(3, dtype=np.float32)
    assert policy({"flat": zeros}) == trainer.agent.predict(zeros) == 1
    assert trainer.alg.predict({"flat": torch.zeros(1, 3)}) == 1
    trainer.close()


def test_own_roles_act_on_what_they_learn_from(own):
    trainer = own(online={"normalize_obs": True, "collect_steps": 10})
    for _ in range(3):
        list(trainer.round())
    stats = trainer.alg.obs_normalizer.stats["flat"]
    shown = torch.from_numpy(trainer.obs["flat"])
    trainer.choose_actions()
    expected = (shown - stats["offset"]) / stats["scale"]
    torch.testing.assert_close(trainer.alg.written.model.seen, expected)
    trainer.close()


def test_what_own_roles_cannot_do_is_named(own, monkeypatch):
    with pytest.raises(ValueError, match="train.frame_stack, seq_length: .*constant"):
        own(frame_stack=2)
    with pytest.raises(ValueError, match="train.online.replay.prioritized: .*constant"):
        own(online={"replay": {"prioritized": True}})
    monkeypatch.setattr(Own, "LOSS", "error")
    with pytest.raises(ValueError, match="constant: learn.*error.*'loss'"):
        list(own().round())


def test_actions_that_are_chosen_among_random_ones_are_the_same_each_time():
    trainer = Trainer(env_id="Pendulum-v1", algo_name="bcq")
    obs = trainer.envs.reset()["flat"]
    assert np.array_equal(trainer.agent.predict(obs), trainer.agent.predict(obs))
    assert np.array_equal(trainer.agent.predict(obs[0]), trainer.agent.predict(obs)[0])
    trainer.close()


def test_what_was_drawn_before_is_not_learned_from_after_going_on(trainer):
    state = copy.deepcopy(trainer.state())
    for _ in range(3):
        list(trainer.round())
    trainer._run_collect()
    assert trainer._is_due()
    trainer.restore(state)
    assert not trainer._is_due()


def test_priorities_of_no_steps_are_refused():
    config = {"train": {"online": {"replay": {"prioritized": True}}}}
    trainer = Trainer(config, env_id="CartPole-v1", algo_name="dqn")
    with pytest.raises(ValueError):
        trainer._run_train()
    trainer.close()


def test_random_first_steps_are_none_of_algorithms_that_learn_from_rounds():
    config = {"train": {"online": {"collect_steps": 16, "random_steps": 100}}}
    trainer = Trainer(config, env_id="CartPole-v1", algo_name="ppo")
    assert [record["type"] for record in trainer.round()][1] == "train"
    trainer.close()


@pytest.mark.parametrize("says", ["the decorator", "the config"])
def test_a_decorated_training_that_is_left_early_is_finished(says, trainer, tmp_path, monkeypatch):
    ended, project = [], "project" if says == "the decorator" else None
    trainer.config.experiment.logging.log_wandb = says == "the config"

    class Run:
        log = __enter__ = lambda *_: None

        def __exit__(self, *_):
            ended.append(self)

    wandb = SimpleNamespace(init=lambda **_: Run())
    monkeypatch.setitem(logger.__globals__, "needed", lambda *_: wandb)
    records = logger(Trainer.__call__, tmp_path, project)(trainer)
    next(records)
    assert not ended
    records.close()
    assert len(ended) == 1


@pytest.mark.slow
def test_given_environments_are_evaluated_in_the_one_that_is_named():
    make = lambda: gymnasium.make("CartPole-v1").unwrapped  # noqa: E731 (which has no name)
    config = {**SMALL_DQN, "experiment": {"rollout": {"n": 2, "horizon": 5}}}
    nameless = Trainer(config, algo_name="dqn", envs=SyncVectorEnv([make] * 2))
    with pytest.raises(ValueError, match="env_id"):
        nameless.evaluate()
    named = Trainer(config, "CartPole-v1", "dqn", envs=SyncVectorEnv([make] * 2))
    assert named.evaluate()["logs"]["Horizon"] == 5
    nameless.close(), named.close()


def test_a_name_brings_its_own_trainer(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    trainer = Trainer(SMALL_ROLES, "CartPole-v1", "four_roles.dqn")
    assert type(trainer).__name__ == "DQNTrainer"
    trainer.close()


def test_models_take_the_actions_that_they_give():
    config = {"algo": {"critic": {"layer_dims": [8]}, "actor": {"layer_dims": [8]}}}
    trainer = Trainer(config, "Pendulum-v1", "sac")
    alg, model, obs = trainer.alg, trainer.alg.model, torch.randn(5, 3)
    assert model is trainer.alg.model
    action = model.action(obs)
    assert action.shape == (5, 1)
    learned = alg.get_state_action_value({"flat": obs}, action / 2)  # the bounds are -2 and 2
    torch.testing.assert_close(model.value(obs, action), learned)
    torch.testing.assert_close(model.value(obs[0], action[0]), learned[0])
    torch.testing.assert_close(model.action(obs[0]), action[0])
    trainer.close()


def test_discrete_actions_may_be_numbers_columns_or_one_hot(trainer):
    model, obs = trainer.alg.model, torch.randn(3, 4)
    actions = torch.tensor([0, 1, 0])
    values = model.value(obs, actions)
    assert torch.equal(model.value(obs, actions[:, None]), values)
    assert torch.equal(model.value(obs, torch.nn.functional.one_hot(actions, 2)), values)
    torch.testing.assert_close(model.value(obs[1], actions[1]), values[1])


@pytest.mark.parametrize("options", [{"frame_stack": 3}, {}], ids=["frames", "memory"])
def test_sampling_elsewhere_changes_nothing_in_training(options):
    memory = {} if options else {"memory": {"enabled": True, "hidden_dim": 8}}
    config = {"algo": memory, "train": {"online": {"num_envs": 3, "collect_steps": 8}, **options}}
    after = []
    for samples in (False, True):
        trainer = Trainer(config, "CartPole-v1", "ppo", seed=1)
        trainer._run_collect()
        if samples:
            before = rng_state()
            for shape in ((5, 4), (3, 4), (4,)):
                trainer.agent.sample(np.ones(shape, np.float32))
            set_rng_state(before)
        trainer._run_train()
        trainer._run_collect()
        after.append(trainer.buffer.take()["obs"]["flat"])
        trainer.close()
    assert torch.equal(*after)


@pytest.mark.parametrize("algo_name", ["ppo", "a2c", "reinforce", "impala"])
def test_a_round_is_learned_from_at_once(algo_name):
    trainer = Trainer({"train": {"online": {"collect_steps": 20}}}, "CartPole-v1", algo_name)
    for learner in (trainer.alg, trainer.agent):
        trainer._run_collect()
        before = [p.clone() for p in trainer.alg.nets.parameters()]
        info = learner.learn(trainer.buffer.take())
        assert np.isfinite(float(info["loss"]))
        after = trainer.alg.nets.parameters()
        assert not all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
    trainer.close()


def test_batches_without_a_time_or_a_part_are_named(trainer):
    with pytest.raises(ValueError, match=r"learn: .*\[4\].*\[B, T, A\]"):
        trainer.agent.learn({"obs": {"flat": np.zeros((4, 4))}, "actions": np.zeros(4)})
    with pytest.raises(ValueError, match="'actions'"):
        trainer.agent.learn({"obs": {"flat": np.zeros((4, 1, 4))}})


def test_an_agent_of_ones_own_takes_any_numbers():
    class Greedy(Agent):
        def __init__(self, alg):
            self.alg = alg

    class Linear(Model):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def action(self, x):
            return self.layer(x).argmax(-1)

    alg = Algorithm()
    alg.model = Linear()
    agent = Greedy(alg)
    assert agent.predict(np.zeros(4)).shape == () and agent.sample(np.zeros((3, 4))).shape == (3,)
    assert agent.num_steps == 3
    agent.state = "its own"
    assert agent.state == "its own"


def test_a_control_flow_of_ones_own_has_methods_of_any_names():
    class Mine(Trainer):
        collect = act = begin = None

        def learn(self):
            yield self._run_train()

        def round(self):
            yield self._run_collect()
            yield from self.learn()

    config = {"train": {"online": {"collect_steps": 20}, "batch_size": 8}}
    with closing(Mine(config, env_id="CartPole-v1", algo_name="dqn")) as trainer:
        assert [record["type"] for record in islice(trainer(), 4)] == ["collect", "train"] * 2


def test_tasks_without_an_end_are_cut_off():
    pytest.importorskip("metaworld")
    config = {"train": {"online": {"random_steps": 5}}}
    trainer = Trainer(config, "push-v3", "sac", num_steps=10)
    assert trainer.config.train.online.horizon == trainer.config.experiment.rollout.horizon == 500
    trainer.close()
    config = {"train": {"online": {"horizon": 70}}}
    trainer = Trainer(config, "push-v3", "sac", num_steps=10)
    assert trainer.config.train.online.horizon == trainer.config.experiment.rollout.horizon == 70
    trainer.close()
