"""Online trainings that start from checkpoints of offline ones, with demonstrations in the mix."""

import copy

import gymnasium
import h5py
import numpy as np
import pytest
import torch
from conftest import ROOT

from offrl import Trainer, config_factory
from offrl.assembly.start import with_checkpoint
from offrl.checkpoint import policy_from_checkpoint, read_checkpoint, write_checkpoint
from offrl.config.files import read_config_file
from offrl.data.computed import returns_to_go
from offrl.online import Agent
from offrl.online import Trainer as OnlineTrainer
from offrl.seeding import rng_state, set_rng_state
from offrl.training import RunFolder
from offrl.training.acting import OnlineTraining
from offrl.tree import merge

SMALL = {"critic": {"layer_dims": [8, 8]}, "actor": {"layer_dims": [8, 8]}}
FEW = {"critic": {"num_random_actions": 2}}
ALGORITHMS = {
    "iql": SMALL,
    "awac": SMALL,
    "td3_bc": SMALL,
    "rebrac": SMALL,
    "cql": merge(SMALL, FEW),
    "cal_ql": merge(SMALL, FEW),
    "sac_n": SMALL,
    "edac": SMALL,
}
ONLINE = {"num_updates": 2, "warmup_steps": 10, "horizon": 8}


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Three episodes of a random policy in the environment."""
    path = tmp_path_factory.mktemp("data") / "pendulum.hdf5"
    env, rng = gymnasium.make("Pendulum-v1"), np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for i in range(3):
            demo, seen = file.create_group(f"data/demo_{i}"), [env.reset(seed=i)[0]]
            actions = rng.uniform(-2, 2, (12, 1)).astype(np.float32)
            rewards = []
            for action in actions:
                obs, reward, *_ = env.step(action)
                seen.append(obs)
                rewards.append(reward)
            demo["obs/flat"], demo["next_obs/flat"] = np.array(seen[:-1]), np.array(seen[1:])
            demo["actions"], demo["rewards"], demo["dones"] = actions, rewards, np.zeros(12)
    return path


@pytest.fixture(scope="module")
def checkpoint_of(demos, tmp_path_factory):
    """A function: the checkpoint of two steps of an offline training."""
    made = {}

    def train(name, algo=None, train=None):
        key = repr((name, algo, train))
        if key not in made:
            config = config_factory(name, offline(demos, algo or ALGORITHMS.get(name, {}), train))
            trainer = Trainer(config)
            list(trainer())
            made[key] = tmp_path_factory.mktemp(name) / "last.pth"
            write_checkpoint(made[key], trainer.state())
        return made[key]

    return train


def offline(demos, algo, train=None):
    small = {
        "data": str(demos),
        "num_epochs": 1,
        "batch_size": 4,
        "hdf5_normalize_obs": True,
        "action_config": {"actions": {"normalization": "min_max"}},
    }
    return {
        "algo": algo,
        "experiment": {
            "epoch_every_n_steps": 2,
            "rollout": {"enabled": False},
            "env": "Pendulum-v1",
        },
        "train": merge(small, train or {}),
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }


def online(path, num_steps=20, **changes):
    content = {
        "experiment": {"ckpt_path": str(path), "rollout": {"enabled": False}},
        "train": {"num_steps": num_steps, "online": ONLINE},
    }
    return merge(content, changes)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_actor_critic_goes_on_from_its_checkpoint(name, checkpoint_of, demos):
    path = checkpoint_of(name)
    before = read_checkpoint(path)["model"]
    trainer = OnlineTrainer(online(path))
    assert trainer.config.algo_name == name
    assert trainer.env_args["env_name"] == "Pendulum-v1"
    assert trainer.config.train.batch_size == 4
    for key, weight in trainer.alg.nets.state_dict().items():
        assert torch.equal(weight, before["nets"][key]), key
    for kind, normalizer in (
        ("obs", trainer.alg.obs_normalizer),
        ("actions", trainer.alg.action_normalizer),
    ):
        for key, stats in before["normalization"][kind].items():
            assert torch.equal(stats["scale"], normalizer.stats[key]["scale"])
    assert str(demos) in trainer.buffer.demos.hdf5_path
    records = list(trainer())
    kinds = [r["type"] for r in records]
    assert kinds[:11] == ["collect"] * 10 + ["collect"]  # the policy warms the replay up
    assert kinds.count("train") == 2 * 10
    assert all(np.isfinite(r["logs"]["loss"]) for r in records if r["type"] == "train")
    actions = trainer.buffer.store.arrays["actions"][:20]
    assert np.abs(actions).max() <= 1
    assert len(np.unique(actions)) > 10  # it explores


def test_the_policy_acts_by_itself_before_it_learns(checkpoint_of):
    path = checkpoint_of("td3_bc", SMALL | {"actor": SMALL["actor"] | {"exploration_std": 0.0}})
    trainer = OnlineTrainer(online(path))
    before = copy.deepcopy(trainer.alg.nets.state_dict())
    policy, _ = policy_from_checkpoint(path, device="cpu")
    policy.start_episode(seed=0)
    for _ in range(5):
        list(trainer.round())
    store = trainer.buffer.store
    for row in range(5):
        raw = policy({"flat": store.arrays["obs/flat"][row]})
        taken = trainer.alg.raw_action(torch.from_numpy(store.arrays["actions"][row : row + 1]))
        np.testing.assert_allclose(taken[0].numpy(), raw, atol=1e-5)
    after = trainer.alg.nets.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_what_a_config_says_counts_more_than_the_checkpoint(checkpoint_of):
    path = checkpoint_of("iql")
    content = online(path, train={"batch_size": 7, "data": None}, algo={"adv": {"beta": 1.0}})
    trainer = OnlineTrainer(content)
    assert trainer.config.train.batch_size == 7
    assert trainer.config.algo.adv.beta == 1.0
    assert trainer.config.algo.actor.layer_dims == [8, 8]
    assert trainer.buffer.demos is None


def test_data_that_is_gone_is_left_out_and_said(checkpoint_of, demos, tmp_path, caplog):
    moved = tmp_path / "demos.hdf5"
    moved.write_bytes(demos.read_bytes())
    path = checkpoint_of("iql", SMALL, {"data": str(moved)})
    moved.unlink()
    assert OnlineTrainer(online(path)).buffer.demos is None
    assert "not there any more" in caplog.text


def test_the_config_that_ships_continues_any_checkpoint(checkpoint_of):
    content = read_config_file(ROOT / "configs/finetune.json")
    for name in ("iql", "cal_ql"):
        path = checkpoint_of(name)
        found = with_checkpoint(merge(content, {"experiment": {"ckpt_path": str(path)}}))
        config = config_factory(found["algo_name"], found)
        assert (config.algo_name, config.train.online.random_steps) == (name, 0)
        assert config.train.online.horizon == config.experiment.rollout.horizon
        assert config.algo.critic.layer_dims == [8, 8]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cloning"),
    [("iql", {"gaussian": {"enabled": True}}), ("iql", {}), ("td3_bc", {}), ("sac_n", {})],
)
def test_a_cloned_policy_is_a_start_of_an_actor(name, cloning, checkpoint_of):
    path = checkpoint_of("bc", cloning | {"actor_layer_dims": [8, 8]})
    content = online(path, algo_name=name, algo={"critic": {"layer_dims": [8, 8]}})
    trainer = OnlineTrainer(content)
    cloned, _ = policy_from_checkpoint(path, device="cpu")
    cloned.start_episode()
    for obs in np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32):
        raw = trainer.alg.predict({"flat": torch.from_numpy(obs)[None]})[0].numpy()
        np.testing.assert_allclose(raw, cloned({"flat": obs}), atol=1e-5)
    if "actor_target" in trainer.alg.nets:
        slow, fast = trainer.alg.nets["actor_target"], trainer.alg.nets["actor"]
        for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
            assert torch.equal(a, b)
    assert [r["type"] for r in trainer()].count("train") == 20


@pytest.mark.parametrize(
    "head, goes_on", [({}, "td3_bc"), ({"gaussian": {"enabled": True}}, "iql")]
)
def test_an_actor_critic_goes_on_from_a_cloned_policy(head, goes_on, checkpoint_of):
    trainer = OnlineTrainer(online(checkpoint_of("bc", {"actor_layer_dims": [8, 8], **head})))
    assert trainer.config.algo_name == goes_on
    trainer.close()


def test_a_cloned_policy_that_does_not_fit_is_refused(checkpoint_of):
    path = checkpoint_of("bc", {"actor_layer_dims": [8, 8], "gmm": {"enabled": True}})
    with pytest.raises(ValueError, match=r"'bc'.* iql .*algo\.actor"):
        OnlineTrainer(online(path, algo_name="iql"))
    with pytest.raises(ValueError, match=r"algo_name: .*\bdt\b"):
        OnlineTrainer(online(checkpoint_of("dt")))
    with pytest.raises(ValueError, match="'bc'.*'ppo'"):
        OnlineTrainer(online(path, algo_name="ppo"))
    others = online(checkpoint_of("td3_bc"), algo={"vf_quantile": 0.8})
    with pytest.raises(ValueError, match="'td3_bc'.*'iql'"):
        OnlineTrainer(others, algo_name="iql")


def test_an_environment_that_does_not_fit_is_refused(checkpoint_of, tmp_path):
    path = checkpoint_of("iql")
    with pytest.raises(ValueError, match=r"'flat'.*\[3\].*MountainCar.*\[2\]"):
        OnlineTrainer(online(path, experiment={"env": "MountainCarContinuous-v0"}))
    content = read_checkpoint(path)
    content["shape_metadata"]["ac_dim"] = 2
    write_checkpoint(tmp_path / "other.pth", content)
    with pytest.raises(ValueError, match=" 2 .*Pendulum-v1 1"):
        OnlineTrainer(online(tmp_path / "other.pth"))
    with pytest.raises(FileNotFoundError, match="experiment.ckpt_path: nowhere.pth"):
        OnlineTrainer(online("nowhere.pth"))


def test_rewards_are_those_of_the_offline_training(checkpoint_of):
    rewards = {"scale": 3.0, "shift": 1.0, "normalization": "gaussian"}
    path = checkpoint_of("iql", SMALL, {"rewards": rewards})
    stats = read_checkpoint(path)["reward_normalization_stats"]
    for data in ({}, {"data": None}):
        trainer = OnlineTrainer(online(path, train=data))
        scaled, plain = OnlineTrainer(online(path, train={"rewards": {"normalization": None}})), []
        for t in (trainer, scaled):
            torch.manual_seed(0)
            for _ in range(5):
                list(t.round())
            plain.append(t.buffer.store.arrays["rewards"][:5].copy())
        normal, raw = plain[0], (plain[1] - 1) / 3
        np.testing.assert_allclose(
            normal, 3 * (raw - stats["offset"]) / stats["scale"] + 1, atol=1e-4
        )


def test_returns_of_own_steps_are_known_when_the_episode_has_ended(checkpoint_of):
    trainer = OnlineTrainer(online(checkpoint_of("cal_ql")))
    for _ in range(11):  # an episode of 8 steps, and the first three of the next
        list(trainer.round())
    store, discount = trainer.buffer.store, trainer.config.algo.discount
    rewards, dones = (store.arrays[key][:8] for key in ("rewards", "dones"))
    expected = returns_to_go(rewards, dones, np.array([8]), discount)
    np.testing.assert_array_equal(store.arrays["returns"][:8], expected)
    rows = np.flatnonzero(store.is_step)[8:]
    assert len(rows) == 3
    assert (store.arrays["returns"][rows] == -np.inf).all()


@pytest.mark.parametrize("name", ["cal_ql", "td3_bc"])
def test_a_resumed_training_equals_an_uninterrupted_one(name, checkpoint_of):
    """With demonstrations in the mix, between any two rounds."""
    content = online(checkpoint_of(name), num_steps=30)
    whole = OnlineTrainer(content)
    for _ in range(17):
        list(whole.round())
    state = copy.deepcopy((whole.state(), whole.alg.serialize(), rng_state()))
    list(whole())
    later = OnlineTrainer(content)
    later.restore(state[0])
    later.alg.deserialize(state[1])
    set_rng_state(state[2])
    list(later())
    for key, weight in whole.alg.nets.state_dict().items():
        assert torch.equal(weight, later.alg.nets.state_dict()[key]), key


def test_a_run_goes_on_without_the_checkpoint_that_it_started_from(checkpoint_of, tmp_path):
    start = tmp_path / "start.pth"
    rewards = {"normalization": "return"}
    start.write_bytes(checkpoint_of("iql", SMALL, {"rewards": rewards}).read_bytes())
    own = {"output_dir": str(tmp_path / "runs"), "data": None}
    found = with_checkpoint(online(start, train=own, experiment={"epoch_every_n_steps": 10}))
    training = OnlineTraining(config_factory("iql", found))
    records = training()
    while next(records)["type"] != "epoch":
        pass
    training.run  # noqa: B018 (which makes the folder)
    write_checkpoint(training.run.last_checkpoint, training.state())
    stats, path = training.trainer.experiment.reward_stats, training.run.path
    training.close()
    start.unlink()
    run, config = RunFolder.open(path)
    resumed = OnlineTraining(config, run)
    assert resumed.trainer.experiment.reward_stats == stats
    assert resumed.env_args == training.env_args
    assert [r["type"] for r in resumed()].count("epoch") == 1
    resumed.close()


def test_demonstrations_that_nothing_is_learned_from_are_pointed_out(demos, caplog):
    train = {"data": str(demos), "online": {"collect_steps": 4}}
    trainer = OnlineTrainer({"algo_name": "ppo", "train": train}, env_id="CartPole-v1")
    assert trainer.buffer.demos is None
    assert "ppo learns from its own steps alone, not train.data" in caplog.text


def test_resuming_with_other_demonstrations_is_refused(checkpoint_of, demos, tmp_path):
    mine = tmp_path / "mine.hdf5"
    mine.write_bytes(demos.read_bytes())
    own = {"output_dir": str(tmp_path / "runs"), "data": str(mine)}
    found = with_checkpoint(online(checkpoint_of("iql", SMALL), train=own))
    training = OnlineTraining(config_factory("iql", found))
    path = training.run.path
    write_checkpoint(training.run.last_checkpoint, training.state())
    training.close()
    with h5py.File(mine, "r+") as file:
        file["data/demo_0/actions"][0, 0] += 0.1
    run, config = RunFolder.open(path)
    assert config.meta.provenance["dataset_fingerprint"]
    with pytest.raises(ValueError, match="mine.hdf5 .*experiment.ckpt_path"):
        OnlineTraining(config, run)


def test_a_folder_for_checkpoints_and_random_steps_are_each_trainings_own(checkpoint_of):
    path = checkpoint_of("sac_n", SMALL, {"model_dest": "mine", "online": {"random_steps": 7}})
    found = with_checkpoint({"experiment": {"ckpt_path": str(path)}, "train": {"num_steps": 5}})
    assert "model_dest" not in found["train"] and found["train"]["online"]["random_steps"] == 0


def demo_actions(trainer):
    return trainer.buffer.demos.get_batch(torch.arange(12))["actions"]


def of_scripts(demos, **train):
    """The config of an agent that learns from demonstrations besides."""
    said = {"data": str(demos), "num_steps": 20, "batch_size": 4, "online": ONLINE} | train
    return {
        "algo_name": "td3_bc",
        "experiment": {"env": "Pendulum-v1"},
        "train": said,
        "algo": ALGORITHMS["td3_bc"],
        "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
    }


def test_demonstrations_have_the_units_of_the_checkpoint_wherever_it_is_gone_on_from(
    checkpoint_of, demos
):
    path = checkpoint_of("td3_bc")
    first = OnlineTrainer(online(path))
    expected = demo_actions(first)
    assert expected.abs().max() > 0.99  # by the least and the largest in the data
    fresh = Agent(of_scripts(demos))
    assert not torch.allclose(demo_actions(fresh._session.trainer), expected)
    resumed = OnlineTrainer(online(path), earlier=first.describe())
    agent = Agent(of_scripts(demos), model_file=path)
    fresh.init(path)
    for trainer in (resumed, agent._session.trainer, fresh._session.trainer):
        assert torch.equal(demo_actions(trainer), expected)
    agent.train()
    assert torch.equal(demo_actions(agent._session.trainer), expected)


@pytest.mark.parametrize("share", [None, 1.0])
def test_batches_of_demonstrations_alone_have_no_priorities(share, demos):
    replay = {"prioritized": True, "demo_share": share}
    train = {"data": str(demos), "batch_size": 4, "online": {"random_steps": 2, "replay": replay}}
    seen = {"modalities": {"obs": {"low_dim": ["flat"]}}}
    trainer = OnlineTrainer(
        {"train": train, "observation": seen}, "Pendulum-v1", "td3", num_steps=6
    )
    assert sum(record["type"] == "train" for record in trainer()) == 4
    (priority,) = set(trainer.buffer.priorities.state()["values"].tolist()) - {0.0}
    assert priority == 1.0  # of steps that were never learned from


def test_an_imitation_without_demonstrations_in_a_batch_is_refused(demos):
    train = {"data": str(demos), "online": {"replay": {"demo_share": 0.001}}}
    with pytest.raises(ValueError, match="train.online.replay.demo_share: sqil"):
        OnlineTrainer({"train": train}, "Pendulum-v1", "sqil")


def test_returns_of_other_rewards_are_refused(checkpoint_of):
    content = online(checkpoint_of("cal_ql"), train={"online": {"clip_rewards": True}})
    with pytest.raises(ValueError, match="clip_rewards: cal_ql"):
        OnlineTrainer(content)


@pytest.mark.parametrize("normalized", [False, True])
def test_a_start_goes_on_to_see_what_it_learned_from(normalized, checkpoint_of, demos):
    path = checkpoint_of("td3_bc", train={"hdf5_normalize_obs": normalized})
    with pytest.raises(ValueError, match="train.online.normalize_obs"):
        OnlineTrainer(online(path, train={"online": {"normalize_obs": True}}))
    config = merge(of_scripts(demos), {"train": {"online": {"normalize_obs": True}}})
    with pytest.raises(ValueError, match="train.online.normalize_obs"):
        Agent(config, model_file=path)


def test_a_start_goes_on_with_the_running_statistics_of_its_training(tmp_path):
    running = {"normalize_obs": True, "normalize_rewards": True, "horizon": 8}
    first = OnlineTrainer({"train": {"online": running}}, "Pendulum-v1", "sac", num_steps=20)
    list(first())
    path = tmp_path / "first.pth"
    write_checkpoint(path, first.describe())
    later = OnlineTrainer(online(path, train={"online": running}))
    kept = later.statistics.moments()
    assert kept["obs"]["flat"]["count"] == kept["returns"]["count"] == 20
    stats = later.alg.obs_normalizer.stats["flat"]
    assert torch.equal(stats["scale"], first.alg.obs_normalizer.stats["flat"]["scale"])


def test_priorities_wait_where_no_values_are_learned_yet():
    online = {"warmup_steps": 4, "replay": {"prioritized": True}}
    train = {"batch_size": 4, "online": online}
    trainer = OnlineTrainer({"train": train}, "Pendulum-v1", "plas", num_steps=14)
    assert sum(record["type"] == "train" for record in trainer()) == 10
