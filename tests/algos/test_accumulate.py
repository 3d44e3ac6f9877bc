"""Gradients of several batches that make one step together, and updates in bfloat16."""

import math
import re
import threading
from functools import partial

import pytest
import torch
from test_conformance import CASES, FIRST, case_of  # noqa: F401  # a fixture
from torch.utils._python_dispatch import TorchDispatchMode

from offrl import config_factory
from offrl.algos.shared import updates
from offrl.online import Trainer as OnlineTrainer
from offrl.testing import IN_MEMORY, resumed_equals_uninterrupted
from offrl.training import Trainer
from offrl.tree import map_leaves

DRAWS = ("rand", "normal", "uniform", "exponential", "bernoulli", "multinomial", "native_dropout")


class WithoutChance(TorchDispatchMode):
    """Draws the same number everywhere, so that it matters to nobody which row a draw was for."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        drawn = function(*arguments, **(options or {}))
        if not function.__name__.startswith(DRAWS):
            return drawn
        if function.__name__.startswith("randperm"):
            return drawn.copy_(torch.arange(len(drawn)))
        return drawn.fill_(1 if not drawn.is_floating_point() else 0.37)


@pytest.fixture
def in_float64(monkeypatch):
    def without_chance(algo, batch, own=updates.updated):  # each part has a thread of its own
        with WithoutChance():
            return own(algo, batch)

    monkeypatch.setattr(updates, "updated", without_chance)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def doubles(batch):
    return map_leaves(lambda x: x.double() if x.is_floating_point() else x, batch)


def trained(case, accumulate, num_steps=3):
    algo, batches = case.make({"accumulate": accumulate, "max_grad_norm": 0.1}, batch_size=12)
    algo.nets.double()
    algo.take_stock()
    algo.set_train()
    algo.to_device = partial(map_leaves, torch.Tensor.double)
    for _ in range(num_steps):
        ready = algo.process_batch_for_training(doubles(next(batches)))
        info = algo.train_on_batch(doubles(ready), epoch=1)
    return algo, info


VARIANTS_WITH_MASKS = ["bc-rnn-gmm", "bc-rnn-vae", "bc-mlp-vae_learned", "vq_bet-policy", "hbc-mlp"]
IN_FLOAT32 = ["dqn-default"]  # its one-hot actions are; see the online training below
HELD = sorted({*FIRST, *VARIANTS_WITH_MASKS} & {*CASES} - {"residual-default", *IN_FLOAT32})


QUICK = {"bc-rnn-gmm", "sac_n-default", "td3_bc-default", "vq_bet-policy", "xql-default"}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x in QUICK else pytest.mark.thorough) for x in HELD]
)
def test_parts_make_the_step_of_the_whole_batch(case_of, in_float64, name):  # noqa: F811
    (whole, logs), (parts, own_logs) = (trained(case_of(name), num) for num in (1, 3))
    for key, weight in whole.nets.state_dict().items():
        own = parts.nets.state_dict()[key]
        torch.testing.assert_close(own, weight, rtol=1e-9, atol=1e-12, msg=f"{key} of {name}")
    assert all(getattr(whole, x) == getattr(parts, x) for x in whole.COUNTERS)
    torch.testing.assert_close(own_logs["loss"], logs["loss"], rtol=1e-6, atol=1e-6)


def test_float32_gradients_are_those_of_the_whole_batch_to_1e_5(case_of):  # noqa: F811
    gradients = []
    for num in (1, 3):
        algo, batches = case_of("bc-rnn-gmm").make({"accumulate": num}, batch_size=12)
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
        parameters = algo.nets.parameters()
        gradients.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5 * float(gradients[0].abs().max()))


def test_an_error_in_a_part_ends_the_others_and_is_raised(case_of, monkeypatch):  # noqa: F811
    algo, batches = case_of("td3_bc-default").make({"accumulate": 3}, batch_size=12)
    batch = algo.process_batch_for_training(next(batches))
    seen = []

    def pi_loss(of_part, own=algo.pi_loss):
        seen.append(len(of_part["actions"]))
        if len(seen) == 2:
            raise FloatingPointError("in the second part")
        return own(of_part)

    monkeypatch.setattr(algo, "pi_loss", pi_loss)
    before = threading.active_count()
    with pytest.raises(FloatingPointError, match="in the second part"):
        for _ in range(2):  # the actor learns in every second update
            algo.train_on_batch(batch, epoch=1)
    assert seen == [4, 4] and threading.active_count() == before
    assert algo.microbatches.share == 1


def test_a_batch_of_no_equal_parts_is_refused(case_of):  # noqa: F811
    algo, batches = case_of("bc-mlp-deterministic").make({"accumulate": 3}, batch_size=8)
    batch = algo.process_batch_for_training(next(batches))
    with pytest.raises(ValueError, match="train.accumulate: 3, but the batch has 8 samples"):
        algo.train_on_batch(batch, epoch=1)


def test_what_has_no_samples_is_in_each_part(case_of, monkeypatch):  # noqa: F811
    algo, batches = case_of("bc-mlp-deterministic").make({"accumulate": 3}, batch_size=12)
    batch = algo.process_batch_for_training(next(batches))
    seen, shared = [], {"scale": torch.tensor(2.0), "share": 0.5, "names": ["a", "b"], "more": {}}

    def update(of_part, own=algo.update):
        seen.append((len(of_part["actions"]), {key: of_part[key] for key in shared}))
        return own(of_part)

    monkeypatch.setattr(algo, "update", update)
    algo.train_on_batch(batch | shared, epoch=1)
    assert seen == [(4, shared)] * 3


def test_a_batch_whose_samples_do_not_come_first_is_refused_by_key(case_of):  # noqa: F811
    algo, batches = case_of("bc-mlp-deterministic").make({"accumulate": 3}, batch_size=12)
    batch = algo.process_batch_for_training(next(batches))
    pairs = {key: torch.stack([x, x]) for key, x in batch["obs"].items()}
    with pytest.raises(ValueError) as error:
        algo.train_on_batch(batch | {"obs": pairs}, epoch=1)
    assert str(error.value) == (
        "train.accumulate: obs.position in the batch has the shape [2, 12, 1, 3], but what is "
        "split has the 12 samples first; let process_batch_for_training make it [12, ...]"
    )


def test_a_training_draws_so_many_batches_for_each_step(small_config):
    states = []
    for size, num in ((6, 1), (2, 3)):
        overrides = {"train": {"batch_size": size, "accumulate": num, "num_epochs": 1}}
        trainer = Trainer(small_config(overrides))
        logs = [record["logs"] for record in trainer() if record["type"] == "train"]
        states.append((trainer.algo.nets.state_dict(), logs[0]["Loss"], trainer.loader.position))
    (weights, loss, position), (own, own_loss, own_position) = states
    assert position == own_position and own_loss == pytest.approx(loss, rel=1e-4)
    for key, weight in weights.items():
        torch.testing.assert_close(own[key], weight, rtol=1e-4, atol=1e-5)


def test_a_validation_has_the_samples_of_one_with_large_batches(small_config, monkeypatch):
    losses, sizes = [], []

    def update(algo, batch, own=updates.updated):
        sizes.append(len(batch["actions"]))
        return own(algo, batch)

    monkeypatch.setattr(updates, "updated", update)
    for size, num in ((6, 1), (2, 3), (18, 1), (6, 3)):  # 12 windows are held out
        train = {"batch_size": size, "accumulate": num, "hdf5_validation_filter_key": "train"}
        experiment = {"validate": True, "validation_epoch_every_n_steps": 2}
        trainer = Trainer(small_config({"train": train, "experiment": experiment}))
        losses.append(trainer._validate(trainer.valid_loader)["Loss"])
    assert losses[1::2] == pytest.approx(losses[::2], rel=1e-4)
    assert sizes == [6] * 2 + [2] * 6 + [12] * 2 + [4] * 6


@pytest.mark.parametrize("changed", [{"accumulate": 2}, {"precision": "bf16"}])
def test_a_resumed_training_has_the_same_bits(case_of, changed):  # noqa: F811
    resumed_equals_uninterrupted(case_of("iql-gaussian"), IN_MEMORY | changed)


def test_steps_of_an_online_training_are_made_of_parts():
    weights = []
    for size, num in ((8, 1), (4, 2)):
        overrides = {
            "experiment": {"env": "CartPole-v1"},
            "algo": {"critic": {"layer_dims": [16]}},
            "train": {"num_steps": 60, "batch_size": size, "accumulate": num, "cuda": False}
            | {"online": {"random_steps": 20, "num_envs": 1}},
        }
        trainer = OnlineTrainer(config_factory("dqn", overrides))
        list(trainer())
        trainer.close()
        weights.append(trainer.alg.nets.state_dict())
    for key, weight in weights[0].items():
        torch.testing.assert_close(weights[1][key], weight, rtol=1e-4, atol=1e-5)


def test_rounds_are_not_made_of_parts():
    overrides = {"experiment": {"env": "CartPole-v1"}, "train": {"num_steps": 60, "accumulate": 2}}
    with pytest.raises(ValueError, match="train.accumulate: ppo learns from whole rounds"):
        OnlineTrainer(config_factory("ppo", overrides))


@pytest.mark.parametrize("name", ["a2c", "impala"])
def test_rounds_are_learned_from_in_bfloat16(name):
    train = {"num_steps": 20, "precision": "bf16", "cuda": False}
    overrides = {"experiment": {"env": "CartPole-v1"}, "train": train}
    trainer = OnlineTrainer(config_factory(name, overrides))
    losses = [x["logs"]["loss"] for x in trainer() if x["type"] == "train"]
    trainer.close()
    assert losses and all(map(math.isfinite, losses))


def test_a_recurrent_network_learns_in_bfloat16_or_says_that_the_cpu_cannot(case_of):  # noqa: F811
    algo, batches = case_of("bc-rnn-gmm").make({"precision": "bf16"})
    batch = algo.process_batch_for_training(next(batches))
    try:
        info = algo.train_on_batch(batch, epoch=1)
    except ValueError as error:  # PyTorch's LSTM needs instructions that not every CPU has
        assert re.match(r"train.precision: bf16, but this CPU .*LSTM.*; set it to fp32", str(error))
    else:
        assert info["loss"].isfinite()


def test_networks_learn_in_bfloat16_with_weights_in_float32(case_of):  # noqa: F811
    losses = {}
    for precision in ("fp32", "bf16"):
        algo, batches = case_of("bc-transformer-deterministic").make({"precision": precision})
        batch, dtypes = algo.process_batch_for_training(next(batches)), set()
        hook = torch.nn.modules.module.register_module_forward_hook(
            lambda module, _, out, dtypes=dtypes: dtypes.add(getattr(out, "dtype", None))
        )
        infos = [algo.train_on_batch(batch, epoch=1) for _ in range(40)]
        hook.remove()
        losses[precision] = [float(info["loss"]) for info in infos]
        assert (torch.bfloat16 in dtypes) == (precision == "bf16")
        assert {weight.dtype for weight in algo.nets.parameters()} == {torch.float32}
    first, last = losses["fp32"][0], losses["fp32"][-1]
    assert losses["bf16"] != losses["fp32"] and losses["bf16"][0] == pytest.approx(first, rel=0.02)
    assert losses["bf16"][-1] < first - 0.8 * (first - last)
