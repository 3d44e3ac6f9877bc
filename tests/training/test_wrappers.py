"""The wrappers around the trainer's records."""

import csv
import json
import logging

import h5py
import pytest
import torch
from conftest import train_completely
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from toy_env import toy_args

from offrl import config_factory
from offrl.checkpoint import read_checkpoint, write_checkpoint
from offrl.reports.plot import write_learning_curve
from offrl.training import Checkpointer, Evaluator, Logger, Progress, RunFolder, Trainer
from offrl.tree import merge

pytestmark = pytest.mark.slow


@pytest.fixture
def toy_config(small_config, demos):
    """A config whose dataset names the toy environment."""
    with h5py.File(demos, "r+") as file:
        file["data"].attrs["env_args"] = json.dumps(toy_args())
    rollout = {"enabled": True, "n": 4, "horizon": 12, "rate": 2, "num_workers": 2}
    experiment = {"rollout": rollout, "render_video": False}

    def make(overrides=None):
        return small_config(merge({"experiment": experiment}, overrides or {}))

    return make


def run_all(config, run=None):
    trainer = Trainer(config, run)
    return trainer, train_completely(trainer)


def test_the_evaluator_inserts_its_records_before_the_epochs_end(toy_config):
    _, records = run_all(toy_config())
    kinds = [r["type"] for r in records]
    evaluation = ["episode"] * 4 + ["rollout"]
    assert kinds == ["train", "epoch", "train", *evaluation, "epoch", "train", *evaluation, "epoch"]
    logs = records[7]["logs"]
    assert set(logs) == {
        "n",
        "Crashed",
        "Success_Rate",
        "Success_Rate_Low",
        "Success_Rate_High",
        "Return",
        "Horizon",
    }
    assert logs["n"] == 4 and 0 <= logs["Success_Rate_Low"] <= logs["Success_Rate"]


def test_evaluation_does_not_change_training(toy_config):
    evaluated, _ = run_all(toy_config({"algo": {"gmm": {"enabled": True}}}))
    plain = Trainer(toy_config({"algo": {"gmm": {"enabled": True}}}))
    list(plain())
    first, second = evaluated.algo.nets.state_dict(), plain.algo.nets.state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)


@pytest.mark.slow
def test_training_survives_simulators_that_do_not(toy_config, caplog):
    # Laid over the dataset's env_args, whose other parts stay.
    args = {"env_kwargs": {"trouble": {"1000000": "kill"}}}
    overrides = {
        "experiment": {
            "env_meta_update_dict": args,
            "rollout": {"n": 1, "num_workers": 1, "terminate_on_success": False},
        }
    }
    with caplog.at_level(logging.WARNING):
        trainer, records = run_all(toy_config(overrides))
    rollouts = [r["logs"] for r in records if r["type"] == "rollout"]
    assert rollouts == [{"n": 0, "Crashed": 1}] * 2
    assert trainer.epoch == 3
    assert "1 of 1 episodes could not be run" in caplog.text


def test_an_environment_that_cannot_be_made_stops_before_training(toy_config):
    overrides = {"experiment": {"env_meta_update_dict": toy_args(broken=True)}}
    with pytest.raises(ValueError, match="Toy-v0.*rollout.enabled=false"):
        run_all(toy_config(overrides))


def test_a_dataset_without_an_environment_says_what_to_do(small_config):
    trainer = Trainer(small_config({"experiment": {"rollout": {"enabled": True}}}))
    with pytest.raises(ValueError, match="rollout.enabled=false"):
        Evaluator(trainer)


def test_a_video_that_cannot_be_written_ends_no_training(toy_config, caplog, monkeypatch):
    def fail(path, frames):
        raise OSError("no space left on device")

    monkeypatch.setattr("offrl.training.evaluator.write_video", fail)
    monkeypatch.setattr("offrl.training.evaluator.working_backend", lambda: "egl")
    trainer, _ = run_all(toy_config({"experiment": {"render_video": True}}))
    assert trainer.epoch == 3
    assert "no video: " in caplog.text and "no space left on device" in caplog.text


def test_a_run_folder_holds_everything(toy_config):
    trainer, records = run_all(toy_config({"experiment": {"save": {"every_n_epochs": 2}}}))
    run = trainer.run
    sha = run.sha
    assert run.path.parent.name == "test" and len(sha) in (5, 6, 8)
    files = {str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()}
    events = {f for f in files if "events.out" in f}
    assert len(events) == 1
    best = next(r["epoch"] for r in records if r["type"] == "rollout")
    assert files - events == {
        f"config-{sha}.json",
        "last.pth",
        "previous.pth",
        "metrics.jsonl",
        "metrics.csv",
        "logs/log.txt",
        *(f"models/model_epoch_{n}-{sha}.pth" for n in {2, best}),
    } | ({f"models/model_epoch_3-{sha}.pth"} if improved(records) else set())


def improved(records):
    first, second = (
        (r["logs"]["Success_Rate"], r["logs"]["Return"]) for r in records if r["type"] == "rollout"
    )
    return second >= first


def test_without_a_terminal_the_last_epoch_has_a_line(small_config, capsys):
    trainer = Trainer(small_config({"train": {"num_epochs": 3}}))
    assert len([*Progress(trainer)(trainer())]) > 3
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["epoch 1 of 3", "epoch 3 of 3"]


@pytest.mark.slow
def test_metrics_are_lines_of_json_and_csv(toy_config):
    trainer, records = run_all(toy_config())
    lines = [json.loads(x) for x in (trainer.run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [r for r in records if r["type"] != "progress"]
    with open(trainer.run.path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(r["logs"]) for r in lines)
    assert float(rows[0]["value"]) == next(iter(lines[0]["logs"].values()))


def test_tensorboard_has_robomimics_tags(toy_config):
    trainer, records = run_all(toy_config())
    events = EventAccumulator(str(trainer.run.logs / "tb"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {
        "Train/Loss",
        "Rollout/Success_Rate/toy_env:Toy-v0",
        "Rollout/Return/toy_env:Toy-v0",
        "Rollout/Horizon/toy_env:Toy-v0",
        "Train/Optimizer/policy0_lr",
    } <= tags
    losses = [r["logs"]["Loss"] for r in records if r["type"] == "train"]
    assert [e.value for e in events.Scalars("Train/Loss")] == pytest.approx(losses)
    assert [e.step for e in events.Scalars("Train/Loss")] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("save", "epochs"),
    [
        ({"every_n_epochs": None, "epochs": [1, 3]}, {1, 3}),
        ({"every_n_epochs": 2}, {2}),
        ({"every_n_epochs": None, "every_n_seconds": 0.0}, {1, 2, 3}),
        ({"every_n_epochs": None, "on_best_validation": True}, {1, 3}),
        # The third is as successful as the second, and of higher return.
        ({"every_n_epochs": None, "on_best_rollout_success_rate": True}, {1, 2, 3}),
        ({"every_n_epochs": None, "on_best_rollout_return": True}, {1, 3}),
    ],
)
def test_checkpoints_are_kept_when_asked_for(small_config, save, epochs):
    save = {"on_best_rollout_success_rate": False, **save}
    trainer = Trainer(small_config({"experiment": {"save": save}}))
    valid, success, reward = {1: 0.5, 2: 0.7, 3: 0.4}, {1: 0.2, 2: 0.9, 3: 0.9}, {1: 3, 2: 2, 3: 4}

    def scored(records):
        for record in records:
            if record["type"] == "epoch":
                epoch = record["epoch"]
                yield trainer.record("valid", {"Loss": valid[epoch]})
                yield trainer.record(
                    "rollout", {"Success_Rate": success[epoch], "Return": reward[epoch]}
                )
            yield record

    checkpointer = Checkpointer(trainer)
    list(checkpointer(scored(trainer())))
    kept = {int(p.name.split("_")[2].split("-")[0]) for p in trainer.run.models.iterdir()}
    assert kept == epochs
    state = read_checkpoint(trainer.run.last_checkpoint)["variable_state"]
    assert state["best_valid_loss"] == 0.4 and state["best_success_rate"] == 0.9
    if save["on_best_rollout_success_rate"]:
        assert checkpointer.best_checkpoint == trainer.run.checkpoint(3)


@pytest.mark.parametrize(
    "rates", [[0.9, 0.5, 0.4], [None, None, None], [0.0, None, 0.0], [None, 0.0, 0.0]]
)
def test_the_best_in_the_simulator_goes_before_the_best_by_validation(small_config, rates):
    """By the return where no success is reported, or nothing succeeds."""
    save = {"every_n_epochs": None, "on_best_validation": True}
    trainer = Trainer(small_config({"experiment": {"save": save}}))

    def scored(records):
        for record in records:
            if record["type"] == "epoch":
                epoch = record["epoch"]
                rate = rates[epoch - 1]
                rated = {} if rate is None else {"Success_Rate": rate}
                yield trainer.record("valid", {"Loss": 1 / epoch})
                yield trainer.record("rollout", {**rated, "Return": -epoch})
            yield record

    checkpointer = Checkpointer(trainer)
    list(checkpointer(scored(trainer())))
    assert checkpointer.best_checkpoint == trainer.run.checkpoint(1)


def test_one_process_trains_in_a_folder_at_a_time(small_config):
    run = RunFolder.create(small_config())
    with pytest.raises(ValueError, match=f"^{run.path}: "):
        RunFolder.open(run.path)
    run.unlock()
    RunFolder.open(run.path)


def test_saving_can_be_switched_off(small_config):
    trainer = Trainer(small_config({"experiment": {"save": {"enabled": False}}}))
    checkpointer = Checkpointer(trainer)
    list(checkpointer(trainer()))
    assert not list(trainer.run.path.rglob("*.pth")) and checkpointer.best_checkpoint is None


def test_a_diverged_training_keeps_the_last_good_checkpoint(small_config):
    trainer = Trainer(small_config())
    with pytest.raises(ValueError, match="NaN"):
        for record in Checkpointer(trainer)(trainer()):
            if record["type"] == "epoch" and record["epoch"] == 2:
                with torch.no_grad():
                    trainer.algo.nets["policy"].head.action.bias.fill_(float("nan"))
    content = read_checkpoint(trainer.run.last_checkpoint)
    assert content["variable_state"]["epoch"] >= 1
    assert all(torch.isfinite(w).all() for w in content["model"]["nets"].values())


@pytest.mark.slow
def test_logs_after_a_resume_are_those_of_an_uninterrupted_run(toy_config):
    trainer, _ = run_all(toy_config())
    whole = (trainer.run.path / "metrics.jsonl").read_text().splitlines()
    # As killed in epoch 3, while it wrote a line, with the checkpoint of epoch 2.
    trainer, _ = run_all(toy_config({"train": {"num_epochs": 2}}))
    run = trainer.run
    state = read_checkpoint(run.last_checkpoint)
    with open(run.path / "metrics.jsonl", "a") as file:
        file.write('{"type": "train", "epoch": 3, "step": 15, "time": 0, "logs": {}}\n{"type": "tr')
    with open(run.path / "metrics.csv", "a") as file:
        file.write("train,3,15,0,Loss,1.0\ntrain,3,15")
    resumed = Trainer(toy_config(), run)
    resumed.restore(state)
    evaluator, logger = Evaluator(resumed), Logger(resumed)
    list(logger(evaluator(resumed())))
    evaluator.close()
    logger.close()
    lines = (run.path / "metrics.jsonl").read_text().splitlines()

    def comparable(lines):
        """Without times, and episodes in an order of their own: they end when they end."""
        records = [json.loads(line) for line in lines]
        for record in records:
            for logs in (record, record["logs"]):
                for name in ("time", "Train_Time", "Valid_Time"):
                    logs.pop(name, None)
        return sorted(records, key=lambda r: (r["epoch"], r["type"], r["logs"].get("Seed", 0)))

    assert comparable(lines) == comparable(whole)
    with open(run.path / "metrics.csv") as file:
        assert len(list(csv.DictReader(file))) == sum(len(json.loads(x)["logs"]) for x in whole)


def test_resuming_warns_of_what_makes_a_difference(small_config, tmp_path, caplog):
    trainer = Trainer(small_config())
    write_checkpoint(tmp_path / "state.pth", trainer.state())
    state = read_checkpoint(tmp_path / "state.pth")
    state["provenance"]["num_threads"] = 99
    with caplog.at_level(logging.WARNING):
        Trainer(small_config()).restore(state)
    assert "another num_threads" in caplog.text and "was 99" in caplog.text


def test_resuming_on_another_dataset_is_refused(small_config, demos):
    run = Trainer(small_config()).run
    config = config_factory("bc", json.loads(run.config_file.read_text()))
    Trainer(config, run)
    with h5py.File(demos, "r+") as file:
        file["data/demo_0/actions"][0, 0] += 0.1
    with pytest.raises(ValueError, match="demos.hdf5.*experiment.ckpt_path"):
        Trainer(config, run)


def test_two_runs_never_share_a_folder(small_config):
    config = small_config()
    paths = {RunFolder.create(config).path for _ in range(3)}
    assert len(paths) == 3


def test_a_folder_that_cannot_be_written_says_so(small_config, tmp_path):
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", "/proc/offrl"):
        config = small_config({"train": {"output_dir": str(output)}})
        with pytest.raises(OSError, match="--output"):
            RunFolder.create(config)


def test_wandb_is_asked_for_only_if_installed(small_config):
    try:
        import wandb  # noqa: F401

        pytest.skip("wandb is installed here")
    except ImportError:
        pass
    trainer = Trainer(small_config({"experiment": {"logging": {"log_wandb": True}}}))
    with pytest.raises(ImportError, match=r"log_wandb.*pip install 'offrl\[wandb\]'"):
        Logger(trainer)


@pytest.mark.slow
def test_a_learning_curve_is_drawn(toy_config):
    pytest.importorskip("matplotlib")
    trainer, _ = run_all(toy_config({"experiment": {"name": r"no formula $\frac{$"}}))
    path = write_learning_curve(trainer.run)
    assert path.read_bytes().startswith(b"\x89PNG") and path.stat().st_size > 10_000
