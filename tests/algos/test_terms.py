"""Loss terms by themselves: where a small problem's solution would not show a wrong sign."""

import copy
import math

import h5py
import pytest
import torch

from offrl import Trainer, algo_factory, config_factory
from offrl.algos.edac import mean_similarity
from offrl.algos.xql import gumbel_loss
from offrl.models.heads import Gaussian, GaussianMixture, TanhMixture
from offrl.seeding import seed_everything

SHAPES = {"place": (3,)}


def make(name, algo):
    seed_everything(0)
    config = config_factory(
        name,
        {"algo": algo, "observation": {"modalities": {"obs": {"low_dim": ["place"]}}}},
    )
    return algo_factory(name, config, SHAPES, ac_dim=2, device="cpu")


def batch(size=16, steps=1):
    torch.manual_seed(1)
    return {
        "obs": {"place": torch.randn(size, steps, 3)},
        "next_obs": {"place": torch.randn(size, steps, 3)},
        "actions": torch.rand(size, steps, 2) * 2 - 1,
        "rewards": torch.rand(size, steps),
        "dones": torch.zeros(size, steps),
    }


def test_gumbel_regression_finds_the_soft_maximum():
    values, beta = torch.tensor([0.0, 0.5, 1.0]), 0.5
    v = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.Adam([v], lr=0.05)
    for _ in range(500):
        optimizer.zero_grad()
        gumbel_loss((values - v) / beta, max_clip=7.0).backward()
        optimizer.step()
    soft_maximum = beta * (values / beta).exp().mean().log()
    assert v.item() == pytest.approx(soft_maximum.item(), abs=1e-2)


def test_edac_similarity_of_gradients():
    same = torch.tensor([1.0, 0.0]).expand(3, 5, 2)
    assert mean_similarity(same).item() == pytest.approx(3.0)  # 6 ordered pairs over N - 1
    opposite = torch.stack([same[0], -2 * same[0]])
    assert mean_similarity(opposite).item() == pytest.approx(-2.0)


def test_edac_pushes_gradients_apart():
    found = {}
    for eta in (0.0, 30.0):
        dims = {"layer_dims": [16, 16], "ensemble": {"n": 4}}
        algo = make("edac", {"eta": eta, "critic": dims})
        ready = algo.process_batch_for_training(batch())
        for _ in range(60):
            info = algo.train_on_batch(ready, epoch=1)
        found[eta] = info["Critic/Similarity"].item()
    assert found[30.0] < found[0.0] - 0.2


def test_rebrac_penalties_pull_towards_the_data():
    algo = make("rebrac", {"critic": {"bc_coef": 0.5}, "actor": {"bc_coef": 2.0, "noise_std": 0.0}})
    ready = algo.process_batch_for_training(batch(steps=2))
    target = algo.q_target(ready)
    own = algo.nets["actor_target"](ready["next_obs"], None)[0].mode()
    distance = (own - ready["next_actions"]).square().sum(-1)
    ready["next_known"] = torch.zeros(16, 1)  # nothing follows: no penalty
    free = algo.q_target(ready)
    torch.testing.assert_close(free - target, 0.99 * 0.5 * distance)
    actions = ready["actions"]
    assert algo.cloning(actions, actions) == 0
    assert algo.cloning(actions + 1, actions).item() == pytest.approx(2.0 * 2)


def test_discrete_bcq_keeps_the_logits_of_its_imitation_small():
    found = {}
    for weight in (0.0, 1.0):
        algo = make("discrete_bcq", {"logit_weight": weight})
        actions = torch.eye(2)[torch.arange(16) % 2]
        ready = algo.process_batch_for_training(batch() | {"actions": actions[:, None]})
        for _ in range(60):
            algo.train_on_batch(ready, epoch=1)
        pi, _ = algo.nets["imitation"](ready["obs"])
        found[weight] = pi.logits.square().mean().item()
    assert found[1.0] < 0.1 * found[0.0]


def test_cal_ql_bounds_the_policys_values_by_the_return():
    algo = make("cal_ql", {"critic": {"num_random_actions": 2}})
    q = torch.tensor([[[-3.0, 0.5, -3.0, 0.2, 0.9, -1.0]]])
    calibrated = algo.calibrated(q, {"returns": torch.tensor([[0.3]])})
    assert torch.equal(calibrated, torch.tensor([[[-3.0, 0.5, 0.3, 0.3, 0.9, 0.3]]]))


def test_returns_are_summed_to_the_end_of_an_episode():
    rewards, dones = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.0, 1.0, 0.0]])
    data = batch(size=1, steps=3) | {"rewards": rewards, "dones": dones}
    algo = make("td3_bc", {"n_step": 3, "discount": 0.5})
    ready = algo.process_batch_for_training(data)
    assert ready["rewards"].item() == pytest.approx(2.0)  # 1 + 0.5 * 2, nothing after the end
    assert ready["discounts"].item() == 0
    padded = data | {
        "dones": torch.zeros(1, 3),
        "pad_mask": torch.tensor([True, True, False])[None, :, None],
    }
    ready = algo.process_batch_for_training(padded)
    assert ready["rewards"].item() == pytest.approx(2.0)
    assert ready["discounts"].item() == pytest.approx(0.25)  # bootstrapped after two steps


def test_the_last_reward_of_an_infinite_horizon_is_received_for_ever():
    data = batch(size=1, steps=3)
    data |= {"rewards": torch.tensor([[2.0, 0.0, 1.0]]), "dones": torch.tensor([[0.0, 0.0, 1.0]])}
    algo = make("td3_bc", {"n_step": 3, "discount": 0.5, "infinite_horizon": True})
    ready = algo.process_batch_for_training(data)
    assert ready["rewards"].item() == pytest.approx(2.0 + 0.25 * 1.0 / 0.5)


def test_the_next_frames_are_those_before_an_unfinished_end():
    steps = torch.tensor([6.0, 7.0, 8.0, 9.0, 9.0])  # two frames, then n = 3; the last is padding
    data = batch(size=1, steps=5) | {
        "obs": {"place": steps[None, :, None].expand(1, 5, 3)},
        "next_obs": {"place": (steps + 1)[None, :, None].expand(1, 5, 3)},
        "pad_mask": torch.tensor([True, True, True, True, False])[None, :, None],
    }
    config = config_factory(
        "td3_bc",
        {
            "algo": {"n_step": 3},
            "train": {"frame_stack": 3, "seq_length": 3},
            "observation": {"modalities": {"obs": {"low_dim": ["place"]}}},
        },
    )
    algo = algo_factory("td3_bc", config, SHAPES, ac_dim=2, device="cpu")
    ready = algo.process_batch_for_training(data)
    assert ready["next_obs"]["place"][0, :, 0].tolist() == [8.0, 9.0, 10.0]
    assert ready["discounts"].item() == pytest.approx(0.99**2)


@pytest.mark.slow
def test_targets_take_over_the_statistics_of_batch_normalisation():
    camera = {"core_class": "VisualCore", "core_kwargs": {"backbone_class": "ResNet18Conv"}}
    seen = {"modalities": {"obs": {"low_dim": [], "rgb": ["cam"]}}, "encoder": {"rgb": camera}}
    config = config_factory("td3_bc", {"algo": {"target_tau": 1.0}, "observation": seen})
    algo = algo_factory("td3_bc", config, {"cam": (3, 64, 64)}, ac_dim=2, device="cpu")
    algo.set_train()
    frames = {"cam": torch.randint(256, (4, 1, 64, 64, 3), dtype=torch.uint8)}
    ready = algo.process_batch_for_training(batch(4) | {"obs": frames, "next_obs": frames})
    for _ in range(2):
        algo.train_on_batch(ready, epoch=1)
    fast, slow = algo.nets["actor"].state_dict(), algo.nets["actor_target"].state_dict()
    statistics = [key for key in fast if key.endswith("running_mean")]
    assert statistics and all(fast[key].any() for key in statistics)
    assert all(torch.equal(fast[key], slow[key]) for key in fast)


def test_crr_weighs_by_the_exponential_of_the_advantage():
    algo = make("crr", {"beta": 0.5, "max_weight": 20.0})
    weight = algo.weight(torch.tensor([-1.0, 0.0, 1.0, 9.0]))
    torch.testing.assert_close(weight, torch.tensor([math.exp(-2), 1.0, math.exp(2), 20.0]))


@pytest.mark.parametrize("name", ["awac", "crr"])
def test_an_advantage_compares_actions_on_the_same_crop(name, monkeypatch):
    seed_everything(0)
    encoder = {
        "core_kwargs": {"backbone_class": "ShallowConv", "feature_dimension": 8},
        "obs_randomizer_class": "CropRandomizer",
        "obs_randomizer_kwargs": {"crop_height": 16, "crop_width": 16},
    }
    observation = {
        "modalities": {"obs": {"low_dim": [], "rgb": ["image"]}},
        "encoder": {"rgb": encoder},
    }
    config = config_factory(name, {"observation": observation})
    algo = algo_factory(name, config, {"image": (3, 24, 24)}, ac_dim=2, device="cpu")
    images = {"image": torch.randint(0, 256, (16, 1, 24, 24, 3), dtype=torch.uint8)}
    ready = algo.process_batch_for_training(batch() | {"obs": images, "next_obs": images})
    monkeypatch.setattr(Gaussian, "sample", lambda self, generators=None: ready["actions"])
    monkeypatch.setattr(Gaussian, "repeated", lambda self, times: self)
    advantages = []
    monkeypatch.setattr(algo, "weight", lambda a: advantages.append(a) or a)
    algo.set_train()
    algo.train_on_batch(ready, epoch=1)
    assert not advantages[0].any()


def test_sac_targets_have_the_entropy_of_the_next_action():
    algo = make("sac_n", {})
    ready = algo.process_batch_for_training(batch())
    next_pi, _ = algo.nets["actor"](ready["next_obs"], None)
    values = {}
    for log_weight in (-20.0, 0.0):
        torch.nn.init.constant_(algo.nets["entropy"].param, log_weight)
        torch.manual_seed(3)
        values[log_weight] = algo.next_value(ready, next_pi)
    torch.manual_seed(3)
    _, log_prob = next_pi.rsample(1)
    torch.testing.assert_close(values[0.0], values[-20.0] - log_prob)


@pytest.mark.parametrize("name", ["iql", "awac", "hiql"])
def test_a_mixture_is_squashed_whole_where_use_tanh_says_so(name):
    for use_tanh, kind in ((True, TanhMixture), (False, GaussianMixture)):
        algo = make(name, {"actor": {"net": {"type": "gmm", "common": {"use_tanh": use_tanh}}}})
        actor = algo.nets["actor"]
        assert type(actor.head(torch.zeros(1, 1, actor.trunk.output_dim))) is kind


@pytest.mark.parametrize("masks", [True, False])
def test_slow_critics_of_robomimics_iql_are_in_training_mode(masks):
    sees = {"modalities": {"obs": {"low_dim": ["place"]}}}
    config = config_factory("iql", {"train": {"mask_padded_steps": masks}, "observation": sees})
    algo = algo_factory("iql", config, SHAPES, ac_dim=2, device="cpu")
    algo.set_train()
    assert algo.nets["critic_target"].training is not masks
    algo.set_eval()
    assert not algo.nets["critic_target"].training


def test_edac_needs_two_critics():
    with pytest.raises(ValueError, match="ensemble.n"):
        make("edac", {"critic": {"ensemble": {"n": 1}}})


@pytest.mark.parametrize(
    ("name", "missing", "message"),
    [
        ("iql", "next_obs", "train.hdf5_load_next_obs"),
        ("cal_ql", "returns", "train.dataset_keys: .*'returns'"),
        ("dt", "timesteps", "train.dataset_keys: .*'timesteps'"),
    ],
)
def test_data_that_the_config_does_not_ask_for(name, missing, message):
    data = batch(steps=10) | {"returns": torch.zeros(16, 10), "timesteps": torch.arange(10)}
    del data[missing]
    with pytest.raises(ValueError, match=message):
        make(name, {}).process_batch_for_training(data)


def test_robomimic_configs_count_every_step_of_a_window():
    data = batch(size=1, steps=2) | {"dones": torch.tensor([[1.0, 0.0]])}
    config = config_factory(
        "bcq",
        {
            "algo": {"n_step": 2, "infinite_horizon": True},
            "train": {"mask_padded_steps": False},
            "observation": {"modalities": {"obs": {"low_dim": ["place"]}}},
        },
    )
    algo = algo_factory("bcq", config, SHAPES, ac_dim=2, device="cpu")
    total = (data["rewards"][0, 0] + 0.99 * data["rewards"][0, 1]).item()
    ready = algo.process_batch_for_training(data)
    assert ready["rewards"].item() == pytest.approx(total / (1 - math.pow(0.99, 2)), rel=1e-4)
    assert ready["discounts"].item() == 0


@pytest.mark.parametrize(
    ("changes", "algo", "message"),
    [
        ({"rewards": 0.0}, {}, "rewards.*td3_bc"),
        ({"rewards": 0.5}, {"critic": {"value_bounds": [0.0, 1.0]}}, "algo.critic.value_bounds"),
    ],
)
def test_data_without_anything_to_learn_is_refused(small_config, demos, changes, algo, message):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            for key, value in changes.items():
                demo[key][...] = value
    with pytest.raises(ValueError, match=message):
        Trainer(small_config({"algo": algo}, "td3_bc"))


def test_data_without_an_end_is_warned_of(small_config, demos, caplog):
    with h5py.File(demos, "a") as file:
        for demo in file["data"].values():
            demo["dones"][...] = 0
    Trainer(small_config({}, "td3_bc"))
    assert "no step of the data is terminal" in caplog.text


def test_value_bounds_are_ordered():
    with pytest.raises(ValueError, match="algo.critic.value_bounds"):
        config_factory("td3_bc", {"algo": {"critic": {"value_bounds": [1.0, 0.0]}}})


def test_bcq_leaves_a_frozen_posterior_as_it_is():
    algo = make("bcq", {"action_sampler": {"freeze_encoder_epoch": 2}})
    ready = algo.process_batch_for_training(batch())
    vae = algo.nets["action_sampler"]
    for epoch, moves in ((1, True), (2, False)):
        before = [p.clone() for p in (*vae.posterior.parameters(), *vae.decoder.parameters())]
        algo.train_on_batch(ready, epoch=epoch)
        after = [*vae.posterior.parameters(), *vae.decoder.parameters()]
        moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        half = len(list(vae.posterior.parameters()))
        assert all(moved[half:]) and all(m == moves for m in moved[:half])


def test_bcqs_targets_stop_with_their_networks():
    stages = {"critic": {"end_epoch": 2}, "actor": {"end_epoch": 3}}
    algo = make("bcq", {"actor": {"enabled": True}, "optim_params": stages, "target_tau": 0.1})
    ready = algo.process_batch_for_training(batch())
    for epoch, moving in ((1, {"critic", "actor"}), (2, {"actor"}), (3, set()), (4, set())):
        before = copy.deepcopy(algo.nets.state_dict())
        algo.train_on_batch(ready, epoch=epoch)
        after = algo.nets.state_dict()
        moved = {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])}
        assert moved == {*moving, *(f"{name}_target" for name in moving), "action_sampler"}


def test_td3_bcs_targets_move_with_its_actor():
    stages = {"critic": {"end_epoch": 2}, "actor": {"end_epoch": 3}}
    algo = make("td3_bc", {"optim_params": stages, "actor": {"update_freq": 1}})
    ready = algo.process_batch_for_training(batch())
    targets = {"actor_target", "critic_target"}
    for epoch, moving in ((1, {"critic", "actor"} | targets), (2, {"actor"} | targets), (3, set())):
        before = copy.deepcopy(algo.nets.state_dict())
        algo.train_on_batch(ready, epoch=epoch)
        after = algo.nets.state_dict()
        moved = {key.split(".")[0] for key in after if not torch.equal(before[key], after[key])}
        assert moved == moving


def test_cqls_target_is_of_a_drawn_action_or_of_the_mean():
    """The tanh of the Gaussian's mean, as in d3rlpy, whatever is drawn at random meanwhile."""
    targets = {}
    for action in ("mean", "sample"):
        algo = make("cql", {"critic": {"target_action": action}})
        ready = algo.process_batch_for_training(batch())
        next_pi, _ = algo.policy(ready["next_obs"])
        targets[action] = [algo.next_value(ready, next_pi) for _ in range(2)]
        mean = torch.tanh(next_pi.mean)[:, None] if next_pi.mean.ndim == 2 else next_pi.mean.tanh()
        of_mean = algo.nets["critic_target"](ready["next_obs"], mean, None).amin(0)
    torch.testing.assert_close(targets["mean"][0], of_mean)
    assert torch.equal(*targets["mean"]) and not torch.equal(*targets["sample"])


@pytest.mark.parametrize(
    "critic", [{"num_action_samples": 4}, {"deterministic_backup": False}], ids=str
)
def test_what_contradicts_a_target_of_the_mean_is_refused(critic):
    with pytest.raises(ValueError, match="algo.critic: target_action"):
        make("cql", {"critic": {"target_action": "mean", **critic}})
