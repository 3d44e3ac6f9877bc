"""Policies that predict chunks of actions, at environments."""

import json
import re
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import GOLDEN, write_demos
from toy_env import toy_args

from offrl import RolloutPolicy, Trainer, config_factory
from offrl.__main__ import main
from offrl.acting.executor import Executor, RealTime
from offrl.algos import algo_factory
from offrl.config import RolloutConfig, config_from_content
from offrl.envs.workers import EpisodeRequest
from offrl.evaluation import evaluate, with_latency
from offrl.training import Checkpointer
from offrl.tree import merge

TINY = {
    "algo": {
        "unet": {"down_dims": [8, 16], "n_groups": 4, "diffusion_step_embed_dim": 8},
        "ddpm": {"num_train_timesteps": 10, "num_inference_timesteps": 3},
        "horizon": {"action_horizon": 2, "prediction_horizon": 4},
    }
}


@pytest.fixture
def make(small_config):
    """A diffusion policy, which samples."""

    def make(overrides=None):
        config = small_config(merge(TINY, overrides or {}), "diffusion_policy")
        return Trainer(config).algo

    return make


def observations(num, seed=0):
    rng = np.random.default_rng(seed)
    return {e: {"position": rng.normal(size=3), "speed": rng.normal(size=2)} for e in range(num)}


@pytest.mark.slow
@pytest.mark.parametrize("latency", [0, 200])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_evaluation_is_bit_equal_for_any_number_of_workers(make, latency, asynchronous, pools):
    rollout = RolloutConfig(latency_ms=latency, asynchronous=asynchronous, control_freq=10)
    policy = with_latency(RolloutPolicy(make()), rollout, toy_args())

    def run(num_workers):
        requests = [EpisodeRequest(seed, 9, False, record=True) for seed in range(8)]
        results = evaluate(policy, pools[num_workers], requests)
        results = sorted(results, key=lambda r: r.request.seed)
        return np.stack([result.trajectory["actions"] for result in results])

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = run(1)
    np.testing.assert_array_equal(first, run(2))
    np.testing.assert_array_equal(first, run(5))
    assert torch.equal(state, torch.get_rng_state())
    assert len({tuple(actions.flatten()) for actions in first}) == 8
    # In the first steps there is nothing to play.
    waits = 2 if latency else 0
    assert not first[:, :waits].any() and first[:, waits].all()
    stands_still = np.array_equal(first[:, 3], first[:, 4])  # the toy repeats its last action
    assert stands_still == bool(latency and not asynchronous)


@pytest.mark.parametrize(("num", "batches"), [(1, [2]), (3, [8]), (9, [32]), (35, [32, 8])])
def test_chunks_are_predicted_where_there_are_none_in_batches_of_a_few_sizes(make, num, batches):
    policy = RolloutPolicy(make())
    obs = observations(num)
    for env in obs:
        policy.start_episode(env, seed=env)
    with mock.patch.object(policy.policy, "sample", wraps=policy.policy.sample) as sample:
        for _ in range(3):  # the third step needs another chunk
            policy.act(obs)
    sizes = [len(call.args[0]["speed"]) for call in sample.call_args_list]
    assert sizes == batches + batches


def test_only_those_whose_queue_is_empty_are_asked_for(make):
    policy = RolloutPolicy(make())
    obs = observations(3)
    for env in obs:
        policy.start_episode(env, seed=env)
    policy.act(obs)
    policy.start_episode(1, seed=1)
    with mock.patch.object(policy.policy, "sample", wraps=policy.policy.sample) as sample:
        policy.act(obs)
    assert len(sample.call_args.args[0]["speed"]) == 2
    np.testing.assert_allclose(sample.call_args.args[0]["speed"][0, 0], obs[1]["speed"], rtol=1e-6)


def test_the_actions_of_a_chunk_are_those_of_predict(make):
    """``predict`` gives them in the units of the environment, and ``get_action`` one by one."""
    algo = make({"train": {"action_config": {"actions": {"normalization": "min_max"}}}})
    frames = {k: torch.tensor(x).repeat(1, 2, 1) for k, x in observations(1)[0].items()}
    chunk = algo.predict(frames)
    assert chunk.shape == (1, 3, 2)
    with mock.patch.object(algo, "sample", wraps=algo.sample) as sample:
        algo.reset()
        actions = [algo.get_action(frames) for _ in range(2)]
    assert sample.call_count == 1 and actions[0].shape == (1, 2)
    policy = RolloutPolicy(algo)
    policy.start_episode(seed=0)
    for step in range(2):
        np.testing.assert_allclose(policy(observations(1)[0]), chunk[0, step], rtol=1e-4, atol=1e-5)


def test_ensembles_average_what_overlaps(make):
    algo = make({"algo": {"horizon": {"action_horizon": 1}, "temporal_ensemble": 0.5}})
    chunks = iter(torch.tensor([[[1.0], [2.0], [3.0]], [[10.0], [20.0], [30.0]]]).expand(-1, -1, 2))
    policy = RolloutPolicy(algo)
    policy.start_episode()
    with mock.patch.object(algo, "chunk", side_effect=lambda *_: next(chunks).expand(2, -1, -1)):
        first, second = (policy(observations(1)[0]) for _ in range(2))
    np.testing.assert_allclose(first, 1.0)
    np.testing.assert_allclose(second, (2 + np.exp(-0.5) * 10) / (1 + np.exp(-0.5)), rtol=1e-6)


def test_in_real_time_all_actions_are_those_of_some_chunk(make):
    policy = RolloutPolicy(make())
    policy.executor = RealTime(policy.executor)
    chunks = []

    def chunk(*inputs):
        chunks.append(len(chunks) + 1 + torch.arange(3.0).view(1, 3, 1).expand(2, 3, 2) / 10)
        return chunks[-1]

    for episode in range(2):
        policy.start_episode(seed=episode)
        with mock.patch.object(policy.policy, "chunk", side_effect=chunk):
            actions = [policy(observations(1, step)[0]) for step in range(8)]
        # On a busy machine there is nothing to play at first.
        acted = [action for action in actions if action is not None]
        played = {round(float(x), 3) for action in acted for x in action}
        given = {round(float(x), 3) for chunk in chunks for x in chunk.flatten()}
        assert played and played <= given
    assert len(chunks) >= 4


# -- bad input ------------------------------------------------------------------------------------


def test_latency_needs_chunks_and_a_frequency(small_config, make):
    rollout = RolloutConfig(latency_ms=50)
    with pytest.raises(ValueError, match=r"latency_ms, asynchronous: bc"):
        with_latency(RolloutPolicy(Trainer(small_config()).algo), rollout, {})
    with pytest.raises(ValueError, match=r"control_freq: .*'toy_env:Toy-v0'"):
        with_latency(RolloutPolicy(make()), rollout, toy_args())
    robosuites = {"env_kwargs": {"control_freq": 20}}
    policy = with_latency(RolloutPolicy(make()), RolloutConfig(latency_ms=101), robosuites)
    assert policy.executor == Executor(2, latency=3)


@pytest.mark.slow
def test_the_command_says_by_how_many_steps_chunks_are_late(small_config, demos, capsys):
    write_demos(demos, env_args=json.dumps(toy_args()))
    rollout = {"experiment": {"rollout": {"control_freq": 10}}}
    trainer = Trainer(small_config(merge(TINY, rollout), "diffusion_policy"))
    list(Checkpointer(trainer)(trainer()))
    last = str(trainer.run.last_checkpoint)
    command = ["rollout", "--checkpoint", last, "--n", "2", "--horizon", "4", "--latency-ms"]
    assert main([*command, "150"]) == 0
    assert "by which a chunk comes late: 2\n" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([*command, "-5"])
    assert "--latency-ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"algo": {"horizon": {"action_horizon": 4}}},
            r"algo\.horizon: action_horizon \(4\) .*observation_horizon \(2\)",
        ),
        (
            {"algo": {"horizon": {"prediction_horizon": 5}}},
            r"algo\.horizon\.prediction_horizon: 5",
        ),
        ({"train": {"frame_stack": 3}}, r"train\.frame_stack: 3.*algo\.horizon\.observation"),
        ({"train": {"seq_length": 2}}, r"train\.seq_length: 2.*algo\.horizon .*3"),
        (
            {"algo": {"horizon": {"prediction_horizon": 20}}},
            r"demos\.hdf5: algo\.horizon: .*19.*7",
        ),
        ({"algo": {"ddpm": {"beta_schedule": "cosine"}}}, r"ddpm\.beta_schedule: .* 'cosine'"),
        (
            {"algo": {"scheduler": "DDIMSheduler"}},
            r"algo\.scheduler: .*'DDIMSheduler'.*'DDIMScheduler'",
        ),
        (
            {
                "algo": {
                    "ddpm": {"prediction_type": "sample"},
                    "scheduler": "EulerAncestralDiscreteScheduler",
                }
            },
            r"EulerAncestralDiscreteScheduler .*\(.*sample.*\)",
        ),
        (
            {"algo": {"ddpm": {"num_train_timesteps": 4, "num_inference_timesteps": 5}}},
            r"DDPMScheduler .*\(.*5.*4.*\)",
        ),
        ({"algo": {"scheduler": "EDMEulerScheduler"}}, r"algo\.scheduler: .*'EDMEulerScheduler'"),
        (
            {"algo": {"ddim": {"enabled": True}}},
            r"algo\.ddpm\.enabled.*algo\.ddim\.enabled",
        ),
        ({"algo": {"unet": {"down_dims": [12]}}}, r"algo\.unet: down_dims: 12"),
        (
            {
                "algo": {
                    "unet": {"enabled": False},
                    "transformer": {"enabled": True, "embed_dim": 30},
                }
            },
            r"algo\.transformer: embed_dim \(30\) .*num_heads \(4\)",
        ),
        ({"algo": {"unet": {"kernel_size": 4}}}, r"algo\.unet: kernel_size: 4"),
        (
            {"algo": {"ema": {"power": 0.5}}, "train": {"ema": {"power": 0.7}}},
            r"algo\.ema\.power .*0\.5.*train\.ema\.power .*0\.7",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_training(small_config, overrides, message):
    with pytest.raises(ValueError, match=message):
        Trainer(small_config(merge(TINY, overrides), "diffusion_policy"))


def test_a_policy_of_codes_needs_epochs_in_which_they_are_learned(small_config):
    with pytest.raises(ValueError, match=r"train\.num_epochs"):
        Trainer(small_config({"algo": {}, "train": {"num_epochs": 1}}, "vq_bet"))


@pytest.mark.parametrize("epoch", [1, 9])
def test_codes_of_chunks_that_were_not_recorded_do_not_count(small_config, epoch):
    """Neither while codes are learned nor later."""
    algo = Trainer(small_config({"algo": {}, "train": {"num_epochs": 10}}, "vq_bet")).algo
    algo.set_eval()
    horizon = algo.algo_config.horizon
    steps = horizon.observation_horizon, horizon.prediction_horizon
    batch = {
        "obs": {"position": torch.randn(2, steps[0], 3), "speed": torch.randn(2, steps[0], 2)},
        "goal_obs": None,
        "actions": torch.rand(2, steps[1], 2),
        "pad_mask": torch.ones(2, steps[1], 1),
    }
    losses = []
    for spoilt in (0.0, 5.0):
        batch["pad_mask"][1] = 0.0
        batch["actions"][1] += spoilt
        losses.append(algo.train_on_batch(batch, epoch, validate=True)["loss"])
    assert torch.equal(*losses)


def test_actions_that_are_never_reached_are_refused(tmp_path, small_config, caplog):
    import h5py

    path = write_demos(tmp_path / "wide.hdf5")
    with h5py.File(path, "r+") as file:
        file["data/demo_0/actions"][0, 0] = 3.0
    changes = merge(TINY, {"train": {"data": str(path)}})
    with pytest.raises(ValueError, match=r"wide\.hdf5: .*actions\.normalization.*min_max"):
        Trainer(small_config(changes, "diffusion_policy"))
    assert "actions" not in caplog.text  # one message
    for remedy in (
        {"train": {"action_config": {"actions": {"normalization": "min_max"}}}},
        {"algo": {"ddpm": {"clip_sample": False}}},
    ):
        Trainer(small_config(merge(changes, remedy), "diffusion_policy"))


def test_rows_without_a_seed_are_as_many_as_there_are(small_config, monkeypatch):
    algo = Trainer(small_config(TINY, "diffusion_policy")).algo
    rows, sample = [], type(algo).sample

    def counted(self, obs, goal, generators):
        rows.append(len(next(iter(obs.values()))))
        return sample(self, obs, goal, generators)

    monkeypatch.setattr(type(algo), "sample", counted)
    for seeds in ([None], [7], [None] * 3):
        policy = RolloutPolicy(algo)
        for env, seed in enumerate(seeds):
            policy.start_episode(env, seed)
        seen = {"position": np.zeros(3), "speed": np.zeros(2)}
        policy.act({env: seen for env in range(len(seeds))})
    assert rows == [1, 2, 3]


@pytest.mark.parametrize(
    ("algo", "keys"),
    [
        ({}, ("ddpm.num_inference_timesteps", "unet.down_dims")),
        ({"unet": {"enabled": False}, "transformer": {"enabled": True}}, ("transformer.num_la",)),
    ],
)
def test_a_chunk_that_takes_longer_than_a_step_is_said(small_config, caplog, algo, keys):
    config = small_config(merge(TINY, {"algo": algo}), "diffusion_policy")
    trainer = Trainer(config)
    assert "parameters" not in caplog.text  # how often the toy is controlled is not known
    trainer.algo.warn_if_slow(1e-3)
    assert not caplog.text
    config.experiment.rollout.control_freq = 1e6
    Trainer(config)
    assert all(f"algo.{key}" in caplog.text for key in keys) and "M parameters" in caplog.text
    state = torch.get_rng_state()
    trainer.algo.warn_if_slow(1e6)
    assert torch.equal(state, torch.get_rng_state())


def test_the_ema_of_robomimics_configs_is_that_of_the_training():
    config = config_factory("diffusion_policy", {"algo": {"ema": {"enabled": True, "power": 0.6}}})
    assert config.train.ema.enabled and config.train.ema.power == 0.6
    assert "ema" not in config.algo.to_dict()
    off = config_factory("diffusion_policy", {"algo": {"ema": {"enabled": False}}})
    assert not off.train.ema.enabled
    with pytest.raises(ValueError, match=r"algo\.ema: .*None"):
        config_factory("diffusion_policy", {"algo": {"ema": None}})


def test_keys_of_a_forks_ema_are_named_and_left_out_where_they_stand(caplog):
    ema = {"power": 0.6, "inv_gamma": 1.0, "max_value": 0.99}
    content = {"algo_name": "diffusion_policy", "algo": {"ema": ema}}
    named = r"algo\.ema\.inv_gamma, algo\.ema\.max_value"
    with pytest.raises(ValueError, match=named):
        config_from_content(content)
    assert config_from_content(content, ignore_unknown=True).train.ema.power == 0.6
    assert re.search(named, caplog.text)


@pytest.mark.thorough
def test_robomimics_template_trains_as_it_is(tmp_path):
    template = json.loads((GOLDEN / "configs/diffusion_policy.json").read_text())
    changes = {
        "experiment": {"epoch_every_n_steps": 2, "rollout": {"enabled": False}},
        "train": {
            "data": str(GOLDEN / "datasets/lift5.hdf5"),
            "output_dir": str(tmp_path),
            "batch_size": 2,
            "num_epochs": 1,
            "cuda": False,
        },
    }
    trainer = Trainer(config_factory("diffusion_policy", merge(template, changes)))
    assert sum(p.numel() for p in trainer.algo.nets.parameters()) == 65763591
    assert trainer.algo.algo_config.schedule.num_inference_timesteps == 100
    assert trainer.config.train.ema.enabled and not trainer.config.train.mask_padded_steps
    assert [record["type"] for record in trainer()][-1] == "epoch"


@pytest.mark.slow
@pytest.mark.parametrize("prediction_type", ["epsilon", "sample", "v_prediction"])
@pytest.mark.parametrize("scheduler", [None, "DDIMScheduler", "DPMSolverMultistepScheduler"])
def test_what_is_predicted_is_what_is_removed(prediction_type, scheduler):
    """With a network that knows the actions, whatever it predicts, these come out."""
    options = {
        "prediction_type": prediction_type,
        "num_train_timesteps": 100,
        "num_inference_timesteps": 10,
    }
    changes = {
        "algo": {"ddpm": options, "scheduler": scheduler, "unet": TINY["algo"]["unet"]},
        "observation": {"modalities": {"obs": {"low_dim": ["speed"]}}},
    }
    config = config_factory("diffusion_policy", changes)
    algo = algo_factory("diffusion_policy", config, {"speed": (2,)}, ac_dim=2, device="cpu")
    actions = torch.rand(1, 16, 2) * 2 - 1
    alphas = algo.schedule.alphas_cumprod

    def knows(noisy, time, seen):
        alpha = alphas[time.long()][:, None, None]
        noise = (noisy - alpha.sqrt() * actions) / (1 - alpha).sqrt()
        return {
            "epsilon": noise,
            "sample": actions.expand_as(noisy),
            "v_prediction": alpha.sqrt() * noise - (1 - alpha).sqrt() * actions,
        }[prediction_type]

    noisy, time, target = algo.corrupt(actions)
    torch.testing.assert_close(knows(noisy, time, None), target, atol=1e-3, rtol=1e-3)
    with mock.patch.object(algo.nets["policy"], "forward", knows):
        obs = {"speed": torch.zeros(1, 2, 2)}
        sampled = algo.sample(obs, None, [torch.Generator().manual_seed(0)])
    assert (sampled - actions).abs().max() < 0.05
