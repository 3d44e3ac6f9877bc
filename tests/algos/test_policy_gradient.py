"""Algorithms that learn from their own steps: what a round becomes, batches, updates, learning."""

import copy
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from own_steps import ALGORITHMS, DISCRETE, RNN, Aim, Noise, Recall, Rounds, make

from offrl import algo_factory, config_factory
from offrl.algos.shared.masks import masked
from offrl.algos.shared.returns import ends_of, gae

SPACES = {
    "discrete": gymnasium.spaces.Discrete(3),
    "real-valued": gymnasium.spaces.Box(-1, 1, (2,)),
}
MEMORIES = {"mlp": {}, "lstm": RNN, "gru": {"memory": RNN["memory"] | {"rnn_type": "GRU"}}}
CASES = [
    pytest.param(name, SPACES[actions], MEMORIES[memory], id=f"{name}-{actions}-{memory}")
    for name in ALGORITHMS
    for actions in SPACES
    for memory in MEMORIES
]


def a_round(algo, space, num_steps=12, num_rounds=2):
    """The last of some rounds: its episodes began in the one before."""
    rounds = Rounds(algo, partial(Noise, space))
    return [rounds.collect(num_steps) for _ in range(num_rounds)][-1]


def prepared(name, space, algo=None, train=None, **options):
    made = make(name, space, algo, train, **options)
    batch = a_round(made, space)
    return made, batch, made.process_batch_for_training(batch)


def weights(algo):
    return copy.deepcopy(algo.nets.state_dict())


def same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


# -- a round --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "space", "memory"), CASES)
def test_a_round_has_the_numbers_that_acting_had(name, space, memory):
    algo, batch, data = prepared(name, space, memory)
    mask = batch["mask"]
    assert (~mask[:, :-1]).any() and not mask[:, -1].any()
    segments = "mask" in data
    for key in ("log_probs", "values"):
        if key in data:
            found = data[key][mask] if segments else data[key]
            torch.testing.assert_close(found, batch[key][mask], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "space", "memory"), [case for case in CASES if case.values[0] in ("ppo", "impala")]
)
def test_the_first_batch_has_ratios_of_one(name, space, memory):
    algo, _, data = prepared(name, space, memory, {"batch_size": 24})
    first = next(iter(algo.minibatches(data)))
    log_probs, *_ = algo.evaluate(first)
    before = first["log_probs"][first["mask"]] if name == "impala" else first["log_probs"]
    torch.testing.assert_close(log_probs, before, atol=1e-5, rtol=1e-5)


def test_a_rounds_advantages_are_those_of_its_own_values():
    algo, batch, data = prepared("ppo", SPACES["discrete"])
    mask = batch["mask"]
    values = algo.get_state_value({"x": batch["obs"]["x"].flatten(0, 2)}).detach().view(mask.shape)
    arrays = (
        batch["rewards"],
        values,
        batch["terminated"],
        torch.from_numpy(ends_of(mask.numpy())),
    )
    expected = torch.from_numpy(gae(*(x.numpy() for x in arrays), 0.99, 0.95))[mask]
    torch.testing.assert_close(data["advantages"], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(data["returns"], expected + values[mask], atol=1e-5, rtol=1e-5)
    assert data["obs"]["x"].shape == (mask.sum(), 1, 4)
    assert data["actions"].shape == (mask.sum(), 1, 3)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", ["reinforce", "a2c"])
def test_an_update_is_by_the_advantages_of_its_own_values(name, normalized):
    options = {"gae_lambda": 0.9, "normalize_advantage": normalized, "ent_coef": 0.01}
    algo, batch, data = prepared(name, SPACES["discrete"], options)
    mask = batch["mask"]
    values = algo.get_state_value({"x": batch["obs"]["x"].flatten(0, 2)}).detach().view(mask.shape)
    arrays = (batch["rewards"], values, batch["terminated"])
    ends = ends_of(mask.numpy())
    advantages = gae(*(x.numpy() for x in arrays), ends, 0.99, 0.9)[mask]
    errors = np.square(advantages)  # V + A - V
    left = advantages.var() / (advantages + values[mask].numpy()).var()
    if normalized:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    info = algo.train_on_batch(next(iter(algo.minibatches(data))), epoch=1)
    expected = -(advantages * batch["log_probs"][mask].numpy()).mean()
    assert info["Actor/Loss"].item() == pytest.approx(expected, abs=1e-5)
    assert info["Critic/Loss"].item() == pytest.approx(errors.mean(), rel=1e-4)
    assert info["Explained_Variance"].item() == pytest.approx(1 - left, abs=1e-4)
    whole = info["Actor/Loss"] + 0.5 * info["Critic/Loss"] - 0.01 * info["Entropy"]
    assert info["loss"].item() == pytest.approx(whole.item(), abs=1e-5)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_stands_where_there_is_no_step_means_nothing(name):
    after = []
    for blank in (0.0, float("nan")):
        algo = make(name, SPACES["discrete"])
        batch = a_round(algo, SPACES["discrete"])
        batch["rewards"][~batch["mask"]] = blank
        batch["terminated"][~batch["mask"]] = blank != 0
        algo.learn(batch)
        after.append(weights(algo))
    assert same(*after)


def test_how_much_of_the_returns_the_values_explain():
    algo, batch, data = prepared("ppo", SPACES["discrete"])
    left = (data["returns"] - data["values"]).var() / data["returns"].var()
    torch.testing.assert_close(data["explained_variance"], 1 - left)
    algo.nets["policy"].value_head.weight.data.zero_()
    batch["rewards"] *= 0  # so that all returns are alike
    assert algo.process_batch_for_training(batch)["explained_variance"].isfinite()


def test_rounds_that_are_none_are_refused():
    algo = make("ppo", SPACES["discrete"])
    batch = a_round(algo, SPACES["discrete"])
    with pytest.raises(ValueError, match="train.num_steps"):
        algo.process_batch_for_training({"obs": batch["obs"], "actions": batch["actions"]})
    batch["mask"][0, -1] = True
    with pytest.raises(ValueError, match="ppo: .*mask"):
        algo.process_batch_for_training(batch)
    with pytest.raises(ValueError, match=r"train\.data.*train\.num_steps"):
        algo.inspect_data(lambda key: torch.zeros(3))


# -- batches --------------------------------------------------------------------------------------


def test_each_pass_has_every_step_once_in_an_order_of_its_own():
    algo, _, data = prepared("ppo", SPACES["discrete"], {"num_passes": 3}, {"batch_size": 8})
    num = len(data["actions"])
    data["values"] = torch.arange(num).float()
    batches = [batch["values"] for batch in algo.minibatches(data)]
    per_pass = len(batches) // 3
    assert len(batches) == 3 * per_pass and per_pass == -(-num // 8)
    assert {len(batch) for batch in batches} <= {num // per_pass, num // per_pass + 1}
    passes = [torch.cat(batches[i : i + per_pass]) for i in range(0, len(batches), per_pass)]
    assert all(torch.equal(order.sort().values, data["values"]) for order in passes)
    assert not torch.equal(passes[0], passes[1]) and not torch.equal(passes[1], passes[2])


def test_a_batch_of_all_steps_is_the_round_itself():
    algo, _, data = prepared("ppo", SPACES["discrete"], {"num_passes": 2}, {"batch_size": 999})
    before = torch.get_rng_state()
    batches = list(algo.minibatches(data))
    assert len(batches) == 2 and torch.equal(before, torch.get_rng_state())
    assert all(batch["actions"] is data["actions"] for batch in batches)


def test_segments_stay_whole():
    algo, batch, data = prepared(
        "ppo", SPACES["discrete"], RNN | {"num_passes": 1}, {"batch_size": 24}
    )
    data["values"] = data["values"] * 0 + torch.arange(4.0)[:, None]
    batches = list(algo.minibatches(data))
    assert [len(b["starts"]) for b in batches] == [2, 2]
    seen = torch.cat([b["values"].unique() for b in batches])
    assert sorted(seen.tolist()) == [0, 1, 2, 3]
    assert sum(len(b["values"]) for b in batches) == batch["mask"].sum()
    assert all(len(b["state"]["h"]) == 2 for b in batches)


# -- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "space", "memory"), CASES)
def test_the_loss_of_a_batch_falls(name, space, memory):
    rate = 1e-2 if memory else 3e-3
    # Targets that hang on the values of now do not stand still: there is one update in a round.
    still = {} if name in ("ppo", "impala") else {"discount": 0.0, "vf_coef": 10.0}
    algo, _, data = prepared(name, space, memory | still, rate=rate)
    batch = next(iter(algo.minibatches(data)))
    losses: list[float] = []
    while len(losses) < 5 or (len(losses) < 60 and np.mean(losses[-5:]) >= 0.9 * losses[0]):
        losses.append(algo.train_on_batch(batch, epoch=1)["Critic/Loss"].item())
    assert np.isfinite(losses).all() and np.mean(losses[-5:]) < 0.9 * losses[0]
    info = algo.train_on_batch(batch, epoch=1)
    assert all(value.dim() == 0 and not value.requires_grad for value in info.values())
    assert {"Loss", "Actor/Loss", "Entropy"} <= algo.log_info(info).keys()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_validation_changes_no_weight(name):
    algo, _, data = prepared(name, SPACES["discrete"])
    batch, before = next(iter(algo.minibatches(data))), weights(algo)
    algo.train_on_batch(batch, epoch=1, validate=True)
    assert same(before, weights(algo))
    algo.train_on_batch(batch, epoch=1)
    assert not same(before, weights(algo))


def praising(name, algo=None, others=-1.0):
    """An algorithm, and a batch in which the first action got 1 and the others less."""
    made = make(name, SPACES["discrete"], algo, rate=1e-2)
    batch = a_round(made, SPACES["discrete"])
    batch["rewards"] = batch["actions"][..., 0] * (1 - others) + others
    batch["terminated"] = batch["mask"].clone()  # of one step each: nothing follows
    batch["mask"][:, 1::2] = False
    batch["terminated"] &= batch["mask"]
    return made, next(iter(made.minibatches(made.process_batch_for_training(batch))))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_did_well_becomes_likelier(name):
    algo, batch = praising(name)
    first = lambda: algo.policy_and_values(batch)[0].log_probs[..., 0].mean().item()  # noqa: E731
    before = first()
    for _ in range(5):
        algo.train_on_batch(batch, epoch=1)
    assert first() > before + 0.02


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_entropys_weight_keeps_it(name):
    entropies = {}
    for weight in (0.0, 10.0):
        algo, batch = praising(name, {"ent_coef": weight})
        for _ in range(30):
            info = algo.train_on_batch(batch, epoch=1)
        entropies[weight] = info["Entropy"].item()
    assert entropies[0.0] < 0.95 < 1.05 < entropies[10.0]  # of three actions log 3 at most


@pytest.mark.parametrize("name", ALGORITHMS)
def test_values_move_to_the_returns(name):
    algo, batch = praising(name, others=1.0)
    error = lambda: (algo.evaluate(batch)[2] - 1).square().mean().item()  # noqa: E731
    before = error()
    for _ in range(30):
        algo.train_on_batch(batch, epoch=1)
    assert error() < 0.5 * before


def test_impalas_targets_are_of_the_present_policy():
    algo, batch = praising("impala")
    likelier = batch["log_probs"] + torch.where(batch["actions"][:, 0, 0] == 1, 1.0, -1.0)
    zeros = torch.zeros_like(likelier)
    targets, advantages = algo.v_trace(batch, likelier, zeros)
    weight = (likelier - batch["log_probs"]).exp().clamp(max=1.0)
    mask = batch["mask"]
    torch.testing.assert_close(targets[mask], (weight * batch["rewards"])[mask])
    torch.testing.assert_close(advantages[mask], (weight * batch["rewards"])[mask])


def test_ppo_learns_nothing_from_what_has_become_likely_enough():
    algo, batch = praising("ppo", {"vf_coef": 0.0, "normalize_advantage": False})
    old = batch["log_probs"]
    good = batch["advantages"] > 0
    before = weights(algo)
    batch["log_probs"] = old - torch.where(good, 0.3, -0.3)  # moved too far the right way
    algo.train_on_batch(batch, epoch=1)
    assert same(before, weights(algo))
    batch["log_probs"] = old + torch.where(good, 0.3, -0.3)  # the wrong way: it must come back
    algo.train_on_batch(batch, epoch=1)
    assert not same(before, weights(algo))


def test_ppo_clips_values():
    algo, _, data = prepared("ppo", SPACES["discrete"], {"value_clip_range": 0.1})
    old = torch.zeros(3)
    batch = {"values": old, "returns": torch.ones(3)}
    loss = algo.v_loss(torch.tensor([0.05, 0.5, -3.0]), batch)
    assert loss.item() == pytest.approx((0.95**2 + 0.9**2 + 1.1**2) / 3)


def test_ppo_says_how_far_it_has_moved():
    algo, batch = praising("ppo")
    info = algo.train_on_batch(batch, epoch=1)
    assert info["Approx_KL"].item() == pytest.approx(0, abs=1e-6) and info["Clip_Fraction"] == 0
    for _ in range(20):
        info = algo.train_on_batch(batch, epoch=1)
    assert info["Approx_KL"] > 0.001 and 0 < info["Clip_Fraction"] <= 1


def test_ppo_stops_when_it_has_moved_enough():
    sizes = {}
    for target in (None, 1e-4, 10.0):
        options = {"target_kl": target, "num_passes": 5}
        algo, _, data = prepared("ppo", SPACES["discrete"], options, {"batch_size": 16}, rate=1e-2)
        for _ in range(2):  # anew in each round
            sizes[target] = 0
            for batch in algo.minibatches(data):
                algo.train_on_batch(batch, epoch=1)
                sizes[target] += 1
            data = algo.process_batch_for_training(a_round(algo, SPACES["discrete"]))
    assert 0 < sizes[1e-4] < sizes[10.0] == sizes[None]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_serialized_comes_back(name):
    algo, _, data = prepared(name, SPACES["real-valued"])
    batch = next(iter(algo.minibatches(data)))
    algo.train_on_batch(batch, epoch=1)
    state = copy.deepcopy(algo.serialize())
    other = make(name, SPACES["real-valued"], seed=1)
    other.deserialize(state)
    for one in (algo, other):
        one.train_on_batch(batch, epoch=1)
    assert same(weights(algo), weights(other))


# -- acting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_it_acts_by_its_likeliest_action_in_evaluation(space):
    algo = make("ppo", space)
    obs = {"x": torch.randn(1, 1, 4).expand(200, 1, 4)}
    with torch.no_grad():
        samples, _ = algo.explore(obs)
        algo.set_eval()
        modes, _ = algo.act(obs)
    assert (samples != samples[0]).any() and (modes == modes[0]).all()
    if algo.is_discrete:
        assert samples.sum(-1).eq(1).all()
    else:
        far = torch.tensor([[3.0, -0.5]])
        assert torch.equal(algo.raw_action(far), torch.tensor([[1.0, -0.5]]))
        torch.testing.assert_close(samples.std(0), torch.ones(2), atol=0.2, rtol=0)


def test_forbidden_actions_are_never_taken_nor_learned_from():
    algo = make("ppo", SPACES["discrete"])
    allowed = torch.tensor([1.0, 0.0, 1.0]).expand(100, 1, 3)
    obs = {"x": torch.randn(100, 1, 4), "action_mask": allowed}
    actions, _ = algo.explore(obs)
    assert not actions[:, 1].any() and actions[:, 0].any() and actions[:, 2].any()
    batch = a_round(algo, SPACES["discrete"])
    batch["obs"]["action_mask"] = torch.tensor([1.0, 0.0, 1.0]).expand(4, 13, 1, 3)
    batch["actions"] = batch["actions"].roll(1, 1) * torch.tensor([1.0, 0.0, 1.0])
    batch["actions"][..., 2] = 1 - batch["actions"][..., 0]
    data = algo.process_batch_for_training(batch)
    first = next(iter(algo.minibatches(data)))
    pi, _ = algo.policy_and_values(first)
    assert pi.log_probs.exp()[..., 1].max() == 0
    info = algo.train_on_batch(first, epoch=1)
    assert info["loss"].isfinite() and 0 < info["Entropy"] <= np.log(2) + 1e-6
    assert all(x.isfinite().all() for x in algo.nets.state_dict().values())


def test_masks_are_those_of_the_latest_frame():
    obs = {"action_mask": torch.tensor([[[1, 0], [0, 1]]])}
    assert masked(torch.zeros(1, 1, 2), obs).argmax().item() == 1
    assert masked(torch.zeros(1, 2), obs).argmax().item() == 1
    assert torch.equal(masked(torch.ones(1, 2), {}), torch.ones(1, 2))


def test_values_of_states():
    algo = make("ppo", SPACES["discrete"])
    obs = torch.randn(5, 4)
    assert algo.get_state_value({"x": obs}).shape == (5, 1)
    assert torch.equal(algo.model.value({"x": obs}), algo.get_state_value({"x": obs}))


@pytest.mark.parametrize("share", [True, False])
def test_images_are_seen_through_one_encoder_or_two(share):
    config = config_factory(
        "ppo",
        {
            "algo": {"share_encoder": share, "policy_layer_dims": [], "value_layer_dims": []},
            "train": DISCRETE | {"cuda": False, "frame_stack": 4},
            "observation": {
                "modalities": {"obs": {"low_dim": [], "rgb": ["screen"]}},
                "encoder": {"rgb": {"core_class": "NatureCNN", "core_kwargs": {}}},
            },
        },
    )
    algo = algo_factory("ppo", config, {"screen": (1, 36, 36)}, 3, "cpu")
    num = sum(p.numel() for p in algo.nets["policy"].encoder.parameters())
    outputs = 512 * 4 + 4
    total = sum(p.numel() for p in algo.nets.parameters())
    assert total == num * (1 if share else 2) + outputs
    batch = {
        "obs": {"screen": torch.randint(0, 256, (2, 5, 4, 36, 36, 1), dtype=torch.uint8)},
        "actions": torch.eye(3)[torch.randint(0, 3, (2, 5))],
        "rewards": torch.rand(2, 5),
        "terminated": torch.zeros(2, 5, dtype=torch.bool),
        "mask": torch.tensor([True, True, True, True, False]).expand(2, 5),
    }
    algo.set_train()
    actions, _ = algo.explore({"screen": batch["obs"]["screen"][:, 0]})
    assert actions.shape == (2, 3)
    data = algo.process_batch_for_training(batch)
    assert data["obs"]["screen"].shape == (8, 4, 1, 36, 36)
    before = weights(algo)
    algo.train_on_batch(next(iter(algo.minibatches(data))), epoch=1)
    assert not any(torch.equal(before[k], x) for k, x in algo.nets.state_dict().items())


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_ppo_balances_a_pole():
    algo = make("ppo", Recall.action_space)
    score = Rounds(algo, lambda: gymnasium.make("CartPole-v1"), 8).learn(60, 32)
    assert score > 130, score


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("ppo", marks=pytest.mark.thorough), "impala"])
def test_a_memory_is_learned(name):
    scores = {}
    for memory in (False, True):
        algo = {"ent_coef": 0.01, "memory": {"enabled": memory, "hidden_dim": 16}}
        made = make(name, Recall.action_space, algo, {"batch_size": 128}, rate=3e-3)
        scores[memory] = Rounds(made, Recall, 16).learn(25, 16)
    assert scores[False] < 0.75 and scores[True] > 0.9, scores


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["ppo", "reinforce", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("a2c", "impala"))],
)
def test_real_valued_actions_are_learned(name):
    algo = make(name, Aim.action_space, {"log_std_init": -0.5}, rate=3e-3)
    rounds = Rounds(algo, Aim, 32)
    before = rounds.learn(1, 8)
    assert rounds.learn(15 if name == "ppo" else 150, 8) > before + 0.6, (
        before,
        rounds.scores[-50:],
    )
