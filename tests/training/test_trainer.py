import json
import math

import h5py
import pytest
import torch
from conftest import write_demos
from toy_env import toy_args

from offrl import Trainer
from offrl.seeding import preserved_rng, rng_state, seed_everything, set_rng_state


def weights(trainer):
    return trainer.algo.nets.state_dict()


def same(first, second):
    return all(torch.equal(first[key], second[key]) for key in first)


def test_a_training_is_a_sequence_of_records(small_config):
    trainer = Trainer(
        small_config(
            {
                "experiment": {"validate": True},
                "train": {"hdf5_validation_filter_key": "valid"},
            }
        )
    )
    records = list(trainer())
    assert [r["type"] for r in records] == ["train", "valid", "epoch"] * 3
    assert [(r["epoch"], r["step"]) for r in records[::3]] == [(1, 5), (2, 10), (3, 15)]
    assert all(set(r) == {"type", "epoch", "step", "time", "logs"} for r in records)
    assert all(isinstance(v, float) for r in records for v in r["logs"].values())


def test_nothing_is_written_by_the_loop_itself(small_config, tmp_path):
    before = set(tmp_path.iterdir())
    list(Trainer(small_config())())
    assert set(tmp_path.iterdir()) == before


def test_an_epoch_can_be_a_pass(small_config):
    trainer = Trainer(small_config({"experiment": {"epoch_every_n_steps": None}}))
    assert [r["step"] for r in trainer() if r["type"] == "train"] == [4, 8, 12]  # 18 windows by 4


def test_the_seed_decides_the_weights(small_config):
    runs = [Trainer(small_config({"train": {"seed": seed}})) for seed in (5, 5, 6)]
    for run in runs:
        list(run())
    assert same(weights(runs[0]), weights(runs[1]))
    assert not same(weights(runs[0]), weights(runs[2]))


def test_validation_leaves_no_trace(small_config):
    plain = Trainer(small_config())
    list(plain())
    validated = Trainer(
        small_config(
            {
                "experiment": {"validate": True},
                "train": {"hdf5_validation_filter_key": "valid"},
            }
        )
    )
    list(validated())
    assert same(weights(plain), weights(validated))


def test_schedules_run_by_epoch_and_by_step(small_config):
    def rates(learning_rate):
        optim = {"optim_params": {"policy": {"learning_rate": {"initial": 1.0, **learning_rate}}}}
        records = Trainer(small_config({"algo": optim}))()
        return [r["logs"]["Optimizer/policy0_lr"] for r in records if r["type"] == "train"]

    assert rates({"epoch_schedule": [1, 2]}) == pytest.approx([1.0, 0.1, 0.01])
    # After 5, 10 and 15 of 15 steps.
    cosine = {"scheduler_type": "cosine", "step_every_batch": True}
    assert rates(cosine) == pytest.approx(
        [0.5 * (1 + math.cos(math.pi * t / 15)) for t in (5, 10, 15)], abs=1e-9
    )


def test_a_loss_that_becomes_nan_stops_the_training_and_says_when(small_config):
    trainer = Trainer(small_config())
    spoil_at, train_on_batch = 8, trainer.algo.train_on_batch

    def train(batch, epoch, validate=False):
        if trainer.step + 1 == spoil_at:
            batch["actions"][0, 0, 0] = float("nan")
        return train_on_batch(batch, epoch, validate)

    trainer.algo.train_on_batch = train
    records = []
    with pytest.raises(ValueError, match="step 8 .epoch 2"):
        for record in trainer():
            records.append((record["type"], record["epoch"]))
    assert records == [("train", 1), ("epoch", 1)]


def test_weights_that_become_nan_in_the_last_step_are_noticed(small_config):
    trainer = Trainer(small_config())
    optimize = trainer.algo.optimize

    def spoil(name, loss):
        norm = optimize(name, loss)
        if trainer.step + 1 == 5:
            with torch.no_grad():
                trainer.algo.nets["policy"].head.action.bias[0] = float("inf")
        return norm

    trainer.algo.optimize = spoil
    with pytest.raises(ValueError, match="step 5 .epoch 1."):
        list(trainer())


def test_training_starts_from_given_weights(small_config, tmp_path):
    from offrl.checkpoint import write_checkpoint

    first = Trainer(small_config())
    list(first())
    write_checkpoint(tmp_path / "first.pth", first.state())
    second = Trainer(small_config({"experiment": {"ckpt_path": str(tmp_path / "first.pth")}}))
    assert same(weights(first), weights(second)) and second.epoch == 0


CONVOLUTIONS = {"core_kwargs": {"conv_kwargs": {"kernel_size": [2]}}}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"train": {"data": None}}, "train.data: "),
        ({"train": {"data": "nowhere.hdf5"}}, "nowhere.hdf5"),
        ({"train": {"batch_size": 1000}}, "train.batch_size"),
        ({"train": {"hdf5_filter_key": "best"}}, "'best'.*train, valid"),
        ({"experiment": {"validate": True}}, "train.hdf5_validation_filter_key"),
        (
            {"observation": {"modalities": {"obs": {"low_dim": ["position", "touch"]}}}},
            "'obs/touch'.*obs/position, obs/speed",
        ),
        (
            {"observation": {"modalities": {"obs": {"rgb": ["position"], "low_dim": ["speed"]}}}},
            "'position' \\(rgb\\)",
        ),
        (
            {"observation": {"modalities": {"goal": {"low_dim": ["speed"]}}}},
            "modalities.goal: .*train.goal_mode",
        ),
        (
            {"observation": {"modalities": {"subgoal": {"low_dim": ["speed"]}}}},
            "modalities.subgoal: bc",
        ),
        ({"train": {"action_keys": ["rewards"]}}, "train.action_config: .*'rewards'"),
        (
            {"train": {"action_config": {"actions": {"format": "rot_6d"}}}},
            "actions.format: rot_6d .*demo_0/actions .*2",
        ),
        (
            {"observation": {"encoder": {"low_dim": {"obs_randomizer_class": "CropRandomizer"}}}},
            r"'position': observation.encoder.low_dim .*\[3\]",
        ),
        (
            {"observation": {"encoder": {"low_dim": {"core_class": "ScanCore"} | CONVOLUTIONS}}},
            "observation.encoder.low_dim .*'out_channels'",
        ),
        ({"train": {"pad_frame_stack": False, "frame_stack": 9}}, "demo_0 .*train.pad_frame_stack"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(small_config, overrides, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        Trainer(small_config(overrides))


def test_the_action_that_is_too_large_is_named(small_config, demos, caplog):
    with h5py.File(demos, "r+") as file:
        for demo in file["data"].values():
            demo["turns"] = 3.0 * demo["actions"][()]
    scaled = {"normalization": "min_max"}
    train = {"action_keys": ["actions", "turns"], "action_config": {"actions": scaled, "turns": {}}}
    Trainer(small_config({"train": train}))
    assert "turns reach 2." in caplog.text and "action_config.turns.normalization" in caplog.text


def test_environments_of_one_name_may_differ(small_config, demos, tmp_path):
    other = tmp_path / "other.hdf5"
    write_demos(demos, env_args=json.dumps(toy_args()))
    write_demos(other, env_args=json.dumps(toy_args(slow=0.1)))
    train = {"data": [str(demos), str(other)]}
    assert len(Trainer(small_config({"train": train})).environments) == 2


def test_nan_in_the_data_is_refused(small_config, demos):
    with h5py.File(demos, "r+") as file:
        file["data/demo_1/actions"][3, 0] = float("nan")
    with pytest.raises(ValueError, match="data/demo_1/actions .* step 3"):
        Trainer(small_config())


def test_random_state_can_be_put_back():
    import random

    import numpy as np

    def draw():
        return random.random(), np.random.rand(), np.random.randn(), torch.rand(1).item()

    seed_everything(3)
    first = draw()
    seed_everything(3)
    with preserved_rng():
        draw()
    state = rng_state()
    assert draw() == first
    set_rng_state(state)
    assert draw() == first


def test_actions_beyond_what_policies_give_are_pointed_out(small_config, demos, caplog):
    Trainer(small_config())
    assert not caplog.text
    with h5py.File(demos, "r+") as file:
        file["data/demo_0/actions"][0, 0] = 2.5
    Trainer(small_config())
    assert "actions reach 2.5" in caplog.text and "min_max" in caplog.text


def test_few_demonstrations_can_be_validated_on(small_config):
    config = small_config(
        {
            "experiment": {"validate": True},
            "train": {
                "batch_size": 10,
                "hdf5_filter_key": "train",
                "hdf5_validation_filter_key": "valid",
            },
        }
    )
    trainer = Trainer(config)
    assert len(trainer.valid_loader.dataset) < 10
    assert "valid" in {record["type"] for record in trainer()}


def test_held_out_demonstrations_that_are_trained_on_are_pointed_out(small_config, caplog):
    held_out = {"hdf5_validation_filter_key": "valid"}
    validated = {"experiment": {"validate": True}, "train": held_out}
    Trainer(small_config(validated))
    assert "demos.hdf5: 1 held-out demonstrations (demo_2, ...) are trained on" in caplog.text
    caplog.clear()
    apart = {"train": held_out | {"hdf5_filter_key": "train"}}
    Trainer(small_config({"experiment": {"validate": True}} | apart))
    assert "held-out" not in caplog.text
