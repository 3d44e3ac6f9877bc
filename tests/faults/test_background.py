"""Evaluations beside the training give what those in its midst give, whatever happens meanwhile."""

import json
import os
import signal
import threading
import time
from contextlib import closing

import pytest
from comparison import assert_same_run, same, weights
from conftest import SMALL, acting_in, write_demos
from toy_env import ToyEnv, toy_args

from offrl.checkpoint import checkpoint_in, read_checkpoint
from offrl.config import config_from_content
from offrl.processes import Interrupted
from offrl.registry import ENVS
from offrl.reports.records import read_records
from offrl.training import Evaluator, Interrupts, RunFolder, Trainer, train
from offrl.training.checkpointer import TaggedNames
from offrl.tree import merge

pytestmark = pytest.mark.slow

# Its best policy is that of epoch 2, and the one of epoch 3 is kept meanwhile.
RECORDED = {
    "algo_name": "bc",
    "algo": {
        "actor_layer_dims": [16, 16],
        "optim_params": {"policy": {"learning_rate": {"initial": 0.02}}},
    },
    "experiment": {
        "validate": True,
        "render_video": False,
        "logging": {"log_tb": False},
        "rollout": {"enabled": True, "n": 3, "horizon": 6, "rate": 2, "num_workers": 1},
        "save": {"every_n_epochs": None, "epochs": [3]},
    },
    "train": {
        "num_epochs": 6,
        "seed": 8,
        "hdf5_filter_key": "train",
        "hdf5_validation_filter_key": "valid",
    },
}
BESIDE = {"experiment": {"rollout": {"in_background": True}}}


@pytest.fixture(scope="module", autouse=True)
def no_curves():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offrl.training.launch.write_learning_curve", lambda run: None)
        yield


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    folder = tmp_path_factory.mktemp("background")
    data = write_demos(folder / "demos.hdf5", env_args=json.dumps(toy_args(slow=0.03)))
    paths = {"train": {"data": str(data), "output_dir": str(folder / "runs")}}
    return merge(merge(SMALL, RECORDED), paths)


def named(content, name):
    return config_from_content(merge(content, {"experiment": {"name": name}}))


def logged(run):
    return [(r["type"], r["epoch"], r["step"]) for r in read_records(run.path / "metrics.jsonl")[0]]


def assert_same_result(result, other):
    assert_same_run(result.run.path, other.run.path)
    assert result.checkpoint.name == other.checkpoint.name and result.test == other.test
    models = [{p.name for p in r.run.models.iterdir()} for r in (result, other)]
    assert models[0] == models[1]
    for name in models[0]:
        _, different = same(*(weights(r.run.models, name) for r in (result, other)))
        assert {*different} <= {"variable_state/best_valid_loss"}  # may be of a later epoch
    assert not result.run.evaluated.exists()


class StopsAWait(Interrupts):
    """Signals to save and to stop while the training waits for the first evaluation."""

    sent = None

    def at_once(self):
        if self.sent is None:
            self.sent = time.monotonic() + 2
            for seconds, number in ((0, signal.SIGUSR1), (2, signal.SIGTERM)):
                threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
        return super().at_once()


def test_a_stop_acts_at_once_and_is_gone_on_from_to_the_same_results(content):
    alone = train(named(content, "alone"))
    config = named(merge(content, BESIDE), "beside")
    with StopsAWait() as interrupts, pytest.raises(Interrupted):
        train(config, None, interrupts)
    assert time.monotonic() - interrupts.sent < 5 and not interrupts.saves
    (path,) = (alone.run.path.parents[1] / "beside").glob("2*")
    run, config = RunFolder.open(path)
    state = read_checkpoint(run.last_checkpoint)
    assert state["variable_state"]["evaluating"] == {"epoch": 2, "step": 10}
    assert state["evaluated"]["variable_state"]["step"] == 10
    run.evaluated.unlink()  # the checkpoint holds it
    beside = train(config, run)
    assert_same_result(beside, alone)
    assert beside.checkpoint == run.checkpoint(2) == checkpoint_in(run.path)
    records = logged(run)
    for epoch in (2, 4):
        rollout = records.index(("rollout", epoch, 5 * epoch))
        assert records.index(("train", epoch + 1, 5 * epoch + 5)) < rollout
        assert records[rollout - 3 : rollout] == [("episode", epoch, 5 * epoch)] * 3


def test_it_is_said_that_one_that_was_under_way_is_left_out(content, caplog):
    trainer = Trainer(named(content, "left"))
    trainer.config.experiment.rollout.enabled = False
    assert trainer.run  # which appears
    trainer.evaluating = {"epoch": 2, "step": 10}
    list(Evaluator(trainer)([]))
    assert "the evaluation of epoch 2, which was under way, is left out" in caplog.text
    assert trainer.evaluating is None


@pytest.mark.thorough
def test_copies_elsewhere_hold_the_scores_as_well(content, tmp_path):
    names = TaggedNames(tmp_path / "models")
    elsewhere = {"train": {"model_dest": str(names.folder), "num_epochs": 5}}
    run = train(named(merge(merge(content, BESIDE), elsewhere), "elsewhere")).run
    assert {*run.models.iterdir()} == {run.checkpoint(2), run.checkpoint(3)}
    for epoch in (2, 3):
        copy = read_checkpoint(names.checkpoint(5 * epoch))["variable_state"]
        assert copy == read_checkpoint(run.checkpoint(epoch))["variable_state"]
        assert copy["best_checkpoints"]["rollout_success_rate"] == run.checkpoint(2).name


def test_its_process_may_be_lost(content):
    trainer = Trainer(named(merge(content, BESIDE), "lost"))
    lost = pytest.raises(ChildProcessError, match=r"evaluates ended \(killed by signal 9\).*num_w")
    with closing(trainer), closing(Evaluator(trainer)) as evaluator, lost:
        for _ in evaluator(trainer()):
            if trainer.evaluating is not None:
                os.kill(evaluator._background._child._process.pid, signal.SIGKILL)
    assert (trainer.epoch, trainer.evaluating) == (3, {"epoch": 2, "step": 10})


def test_it_is_refused_where_it_cannot_be(content, monkeypatch):
    trainer = Trainer(named(merge(content, BESIDE), "refused"))
    monkeypatch.setattr(ToyEnv, "__module__", "__main__")
    ENVS.register("toy")(ToyEnv)
    with pytest.raises(ValueError, match="in_background: .* the script itself registers"):
        Evaluator(trainer)
    trainer.config.experiment.rollout.backend = "ray"
    with pytest.raises(ValueError, match=r"in_background: not with .*backend=ray; .* to false"):
        Evaluator(trainer)


ONLINE = {
    "algo_name": "td3",
    "experiment": merge(
        acting_in("Pendulum-v1", 40),
        {"rollout": {"enabled": True, "n": 2, "rate": 1, "num_workers": 1}, "render_video": False},
    ),
    "train": {
        "num_steps": 160,
        "batch_size": 8,
        "cuda": False,
        "online": {"num_envs": 2, "collect_steps": 5, "random_steps": 10, "horizon": 15},
    },
    "algo": {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}},
}
SEVERAL = {
    "experiment": {"additional_envs": ["toy_env:HandToy-v0"], "rollout": {"rate": 1}},
    "train": {"num_epochs": 3},
}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", [{}, SEVERAL, ONLINE], ids=["one", "several", "online"])
def test_results_are_those_without_it(content, tmp_path, changes):
    content = changes if changes is ONLINE else merge(content, changes)
    content = merge(content, {"train": {"output_dir": str(tmp_path)}})
    alone, beside = train(named(content, "alone")), train(named(merge(content, BESIDE), "beside"))
    assert_same_result(beside, alone)
