import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offrl.algos import BC
from offrl.algos.shared.optim import Optimizers, make_optimizer
from offrl.config import OptimConfig, config_factory
from offrl.testing import (
    AlgoCase,
    averages_are_for_acting_and_weights_for_training,
    frozen_weights_stay,
)


def rates(learning_rate, steps, num_epochs=10, epoch_every_n_steps=100):
    optim = OptimConfig.model_validate({"learning_rate": {"initial": 1.0, **learning_rate}})
    config = config_factory(
        "bc",
        {
            "train": {"num_epochs": num_epochs},
            "experiment": {"epoch_every_n_steps": epoch_every_n_steps},
        },
    )
    moved = {"policy": [torch.nn.Parameter(torch.zeros(1))]}
    learning = Optimizers(moved, {"policy": optim}, config)
    optimizer, schedule = learning.optimizers["policy"], learning.schedules.get("policy")
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if schedule:
            schedule.step()
    return seen


def test_multistep_drops_at_each_milestone():
    assert rates({"epoch_schedule": [2, 4], "decay_factor": 0.5}, 6) == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_no_milestone_is_a_constant_rate():
    assert rates({}, 3) == [1, 1, 1]


def test_linear_goes_down_to_the_factor_and_stays():
    actual = rates({"scheduler_type": "linear", "epoch_schedule": [4], "decay_factor": 0.2}, 6)
    assert actual == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    with pytest.raises(ValueError, match="learning_rate.epoch_schedule"):
        rates({"scheduler_type": "linear", "epoch_schedule": [4, 5]}, 1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("constant", [0.25, 0.5, 0.75, 1, 1]), ("constant_with_warmup", [0, 0.25, 0.5, 0.75, 1])],
)
def test_a_constant_rate_warms_up(kind, expected):
    assert rates({"scheduler_type": kind, "warmup_steps": 4}, 5) == expected


@given(warmup=st.integers(0, 20), by_step=st.booleans())
def test_cosine_warms_up_and_ends_at_zero(warmup, by_step):
    total = 100 if by_step else 30
    actual = rates(
        {"scheduler_type": "cosine", "warmup_steps": warmup, "step_every_batch": by_step},
        total + 1,
        num_epochs=10 if by_step else 30,
        epoch_every_n_steps=10,
    )
    assert actual[0] == (0.0 if warmup else 1.0)
    assert max(actual) == actual[warmup] == 1.0
    assert actual[-1] == pytest.approx(0.0, abs=1e-9)
    middle = warmup + (total - warmup) // 2
    expected = 0.5 * (1 + math.cos(math.pi * (middle - warmup) / (total - warmup)))
    assert actual[middle] == pytest.approx(expected)


def test_weight_decay_and_kind_are_the_configs():
    config = OptimConfig.model_validate({"optimizer_type": "adamw", "regularization": {"L2": 0.1}})
    optimizer = make_optimizer([torch.nn.Parameter(torch.zeros(1))], config)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop"])
def test_epsilon_is_the_configs_or_the_optimizers_own(kind):
    for epsilon, expected in ((None, 1e-8), (1e-5, 1e-5)):
        config = OptimConfig.model_validate({"optimizer_type": kind, "epsilon": epsilon})
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = make_optimizer([weight], config)
        assert optimizer.param_groups[0]["eps"] == expected
        weight.grad = torch.ones(1)
        optimizer.step()
        assert weight < 0


def steps_by_hand(algo, name, loss, **_):
    algo.optimizers[name].zero_grad()
    loss.backward()
    algo.optimizers[name].step()


def asks_for_gradients(algo, name, loss, **_):
    torch.autograd.grad(loss, [*algo.nets[name].parameters()])


@pytest.mark.parametrize(
    ("check", "optimize"),
    [
        (averages_are_for_acting_and_weights_for_training, steps_by_hand),
        (frozen_weights_stay, asks_for_gradients),
    ],
)
def test_a_check_of_steps_by_hand_names_optimize(tmp_path, monkeypatch, check, optimize):
    monkeypatch.setattr(BC, "optimize", optimize)
    with pytest.raises(AssertionError, match=r"self\.optimize"):
        check(AlgoCase("bc", {"algo": {"actor_layer_dims": [16]}}, tmp_path))
