"""``for record in trainer():`` that was left goes on where it was."""

import copy
import json

import h5py
import pytest
import torch
from comparison import same
from toy_env import toy_args

from offrl.training import Evaluator, Trainer

pytestmark = pytest.mark.slow

VALIDATED = {
    "experiment": {"validate": True, "epoch_every_n_steps": 5},
    "train": {"hdf5_filter_key": "train", "hdf5_validation_filter_key": "valid", "batch_size": 2},
    "algo": {
        "vae": {"enabled": True},  # which draws latents
        "optim_params": {"policy": {"learning_rate": {"epoch_schedule": [1, 2], "initial": 1e-2}}},
    },
}
TIMES = ("Train_Time", "Valid_Time")


@pytest.fixture
def make_trainer(small_config, monkeypatch):
    monkeypatch.setattr(Trainer, "PROGRESS_EVERY", 2)
    return lambda: Trainer(small_config(VALIDATED))


def told(record):
    logs = {k: v for k, v in record["logs"].items() if k not in TIMES}
    return record["type"], record["epoch"], record["step"], logs


def state(trainer):
    flat = {f"nets/{k}": v for k, v in trainer.algo.nets.state_dict().items()}
    for name, optimizer in trainer.algo.optimizers.items():
        for i, moments in optimizer.state_dict()["state"].items():
            flat |= {f"{name}/{i}/{k}": v for k, v in moments.items()}
    return flat | {"position": trainer.loader.position}


def test_a_loop_left_at_every_record_gives_what_one_that_was_not_does(make_trainer):
    whole = make_trainer()
    expected = [told(record) for record in whole()]
    left, given = make_trainer(), []
    while len(given) < len(expected):
        for record in left():
            given.append(told(record))
            break
        else:
            pytest.fail(f"{len(given)} records of {len(expected)}")
    assert given == expected and not list(left())
    equal, different = same(state(left), state(whole))
    assert equal, different


def test_an_interrupt_in_the_loops_body_loses_nothing(make_trainer):
    whole = make_trainer()
    expected = [told(record) for record in whole()]
    left, given = make_trainer(), []
    for at in (3, 4, 9):
        with pytest.raises(KeyboardInterrupt):
            for record in left():
                given.append(told(record))
                if len(given) == at:
                    raise KeyboardInterrupt
    given += [told(record) for record in left()]
    assert given == expected
    equal, different = same(state(left), state(whole))
    assert equal, different


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError("out of memory")])
def test_after_half_an_update_there_is_no_going_on(make_trainer, error):
    whole = make_trainer()
    list(whole())
    trainer = make_trainer()
    before = copy.deepcopy(trainer.state())
    step = trainer.algo.optimizers["policy"].step

    def fail(*_):
        step()
        if trainer.step == 6:
            raise error

    trainer.algo.optimizers["policy"].step = fail
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        list(trainer())
    with pytest.raises(ValueError, match="bc: step 7 .*restore"):
        next(trainer())
    trainer.algo.optimizers["policy"].step = step
    trainer.restore(before)
    list(trainer())
    equal, different = same(state(trainer), state(whole))
    assert equal, different


def test_an_interrupted_validation_is_repeated(make_trainer):
    whole = make_trainer()
    expected = [told(record) for record in whole()]
    trainer = make_trainer()
    train_on_batch, given = trainer.algo.train_on_batch, []

    def interrupted(batch, epoch, validate=False):
        if validate:
            torch.rand(5)
            raise KeyboardInterrupt
        return train_on_batch(batch, epoch, validate)

    trainer.algo.train_on_batch = interrupted
    with pytest.raises(KeyboardInterrupt):
        for record in trainer():
            given.append(told(record))
    trainer.algo.train_on_batch = train_on_batch
    given += [told(record) for record in trainer()]
    assert given == expected
    equal, different = same(state(trainer), state(whole))
    assert equal, different


def test_a_loop_left_within_an_evaluation_repeats_it(small_config, demos):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 2, "horizon": 3, "rate": 1, "num_workers": 1}
    trainer = Trainer(small_config({"experiment": {"rollout": rollout, "render_video": False}}))
    evaluator = Evaluator(trainer)
    kinds = []
    for record in evaluator(trainer()):
        kinds.append((record["type"], record["epoch"]))
        if record["type"] == "episode" and record["epoch"] == 2:
            break
    assert kinds[-2:] == [("train", 2), ("episode", 2)]
    kinds = [(record["type"], record["epoch"]) for record in evaluator(trainer())]
    evaluator.close()
    epoch = ["episode", "episode", "rollout", "epoch"]
    assert kinds == [(kind, 2) for kind in epoch] + [(kind, 3) for kind in ["train", *epoch]]


@pytest.mark.slow
def test_an_evaluation_that_was_left_open_does_not_disturb_the_next(small_config, demos):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 4, "horizon": 5, "rate": 1, "num_workers": 2}
    config = small_config({"experiment": {"rollout": rollout, "render_video": False}})
    whole, left = Trainer(config), Trainer(config)
    threads = torch.get_num_threads()
    expected, given = [], []
    for trainer, records in ((whole, expected), (left, given)):
        evaluator = Evaluator(trainer)
        open_records = evaluator(trainer())  # kept, as a traceback does
        if trainer is left:
            for record in open_records:
                given.append(told(record))
                if record["type"] == "episode":
                    break
            given.pop()
            assert torch.get_num_threads() == threads
        later = evaluator(trainer()) if trainer is left else open_records
        records += [told(record) for record in later]
        evaluator.close()
    order = [sorted(map(str, records)) for records in (given, expected)]
    assert order[0] == order[1]
