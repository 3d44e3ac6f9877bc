"""A training that is stopped anywhere goes on as if it had not been."""

import json
import signal
import sys
from pathlib import Path

import h5py
import pytest
from comparison import assert_same_run
from toy_env import toy_args

from offrl.config import config_factory
from offrl.config.files import read_config_file
from offrl.training import Interrupted, Interrupts, RunFolder, Trainer, train
from offrl.training import interrupts as interrupts_module
from offrl.tree import merge

pytestmark = pytest.mark.slow


class SaveAt(Interrupts):
    """As if a signal that asks for a checkpoint came before the ``k``-th look."""

    def __init__(self, k):
        super().__init__()
        self.left = k

    def check(self, number=None):
        self.left -= 1
        if self.left == 0:
            self.come()

    def come(self):
        self.saves = True


class StopAt(SaveAt):
    """As if a signal that stops came there."""

    def come(self):
        raise Interrupted(signal.SIGTERM)


@pytest.fixture
def make_config(small_config, monkeypatch):
    """Two epochs of five steps, with a look at the loss every two of them, and validation."""
    monkeypatch.setattr(Trainer, "PROGRESS_EVERY", 2)
    changes = {
        "experiment": {
            "validate": True,
            "validation_epoch_every_n_steps": 2,
            "logging": {"log_tb": False},  # whose files of one process and second have no order
            "save": {"every_n_epochs": None, "on_best_validation": True},
        },
        "train": {
            "num_epochs": 2,
            "batch_size": 2,
            "hdf5_filter_key": "train",
            "hdf5_validation_filter_key": "valid",
        },
        "algo": {
            "vae": {"enabled": True},  # which draws latents
            "optim_params": {"policy": {"learning_rate": {"epoch_schedule": [1], "initial": 1e-2}}},
        },
    }
    return lambda overrides=None: small_config(merge(changes, overrides or {}))


def newest(config):
    return max(Path(config.train.output_dir).glob(f"{config.experiment.name}/2*"))


def reopened(path):
    """The run and its config, as ``--resume`` finds them."""
    content = read_config_file(next(path.glob("config-*.json")))
    return RunFolder(path), config_factory(content["algo_name"], content)


def stopped_and_resumed(config, stops):
    """A run that was stopped at its ``k``-th look, its continuation at the next, and so on."""
    run, known = None, set(Path(config.train.output_dir).glob("*/2*"))
    for k in stops:
        with pytest.raises(Interrupted):
            train(config, run, StopAt(k))
        if run is None:
            (path,) = set(Path(config.train.output_dir).glob("*/2*")) - known
        run, config = reopened(path)
    return train(config, run).run.path


# 5 steps, 2 validation batches and their mean, twice.
LOOKS = [(2, 6, 11), pytest.param(range(1, 17), marks=pytest.mark.thorough)]


@pytest.mark.parametrize("looks", LOOKS, ids=["some", "all"])
def test_a_training_stopped_at_any_look_goes_on_to_the_same_bits(make_config, looks):
    config = make_config()
    whole = train(config).run.path
    for k in looks:
        assert_same_run(stopped_and_resumed(config, [k]), whole)
    assert_same_run(stopped_and_resumed(config, [3, 3, 1, 2, 2]), whole)
    train(config, interrupts=StopAt(17))  # there are no more looks


@pytest.fixture
def evaluated(make_config, demos):
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 2, "horizon": 4, "rate": 1, "num_workers": 1}
    return make_config(
        {
            "experiment": {
                "rollout": rollout,
                "render_video": False,
                "proxies": {"enabled": True},
            }
        }
    )


# An epoch's looks: 5 steps, 2 validation batches and their mean, proxies, 3 at episodes (one
# after the last).
OF_EVALUATIONS = [(9, 11, 24), pytest.param((10, 12, *range(21, 27)), marks=pytest.mark.thorough)]


@pytest.mark.parametrize("looks", OF_EVALUATIONS, ids=["some", "others"])
def test_an_evaluation_that_a_stop_meets_is_repeated(evaluated, looks):
    whole = train(evaluated).run.path
    for k in looks:
        assert_same_run(stopped_and_resumed(evaluated, [k]), whole)


class Killed(BaseException):
    """Comes after the checkpoint was written."""


@pytest.mark.parametrize("looks", LOOKS, ids=["some", "all"])
def test_a_checkpoint_asked_for_at_any_look_is_a_place_to_go_on_from(
    make_config, monkeypatch, looks
):
    from offrl.training.checkpointer import Checkpointer

    config = make_config({"experiment": {"rollout": {"enabled": False}}})
    whole = train(config).run.path
    write = Checkpointer._write
    for k in looks:
        known = set(Path(config.train.output_dir).glob("*/2*"))

        def write_and_die(checkpointer, path=None):
            write(checkpointer, path)
            if path is None and checkpointer.trainer.interrupts.saves:
                raise Killed

        monkeypatch.setattr(Checkpointer, "_write", write_and_die)
        with pytest.raises(Killed):
            train(config, None, SaveAt(k))
        monkeypatch.setattr(Checkpointer, "_write", write)
        (path,) = set(Path(config.train.output_dir).glob("*/2*")) - known
        run, same_config = reopened(path)
        assert_same_run(train(same_config, run).run.path, whole)


def test_a_checkpoint_asked_of_the_second_process_is_asked_once_and_not_lost(monkeypatch):
    interrupts, shared = Interrupts(), []

    def largest(*numbers):
        shared.append(numbers)
        interrupts.saves |= len(shared) == 1  # the signal comes while the first answer is awaited
        return numbers

    monkeypatch.setattr(interrupts_module.parallel, "largest", largest)
    monkeypatch.setattr(interrupts_module.parallel, "rank", lambda: 1)
    assert [interrupts.agree()[0] for _ in range(3)] == [False, True, False]


def test_a_checkpoint_asked_for_between_two_instructions_is_not_lost():
    interrupts, num_seen = Interrupts(), 0

    def signal_at(number):
        def trace(frame, event, _):
            nonlocal num_seen
            frame.f_trace_opcodes = True
            num_seen += event == "opcode"
            if event == "opcode" and num_seen == number:
                interrupts.saves = True
            return trace

        return trace

    for number in range(1, 20):  # fewer than ``agree`` has
        interrupts.saves, num_seen, before = False, 0, sys.gettrace()
        sys.settrace(signal_at(number))
        saves, _ = interrupts.agree()
        sys.settrace(before)
        assert num_seen > number and (saves or interrupts.saves)
