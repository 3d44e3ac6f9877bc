"""``offrl profile``: where the time of a step goes."""

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, SMALL, acting_in
from fake_gpu import gpu  # noqa: F401  # a fixture
from toy_env import toy_args

from offrl import Trainer, register_algo
from offrl.__main__ import main
from offrl.algos import Algo
from offrl.algos.bc import BC, BCConfig
from offrl.data.columns import FileColumn
from offrl.data.ring import Ring
from offrl.data.sequence import SequenceDataset
from offrl.kernels import compiled
from offrl.tools.profile import advice
from offrl.training.profile import Part, Profile, Profiling
from offrl.tree import merge

SLEEP_S = 0.008
BC_ALGO = {"algo_name": "bc", "algo": {"actor_layer_dims": [16]}}


class SleepyConfig(BCConfig):
    ALGO_NAME = "sleepy"


class Sleepy(BC):
    def update(self, batch):
        time.sleep(SLEEP_S)
        return super().update(batch)


class Turning(BC):
    stage = 0

    def graph_key(self):
        return *super().graph_key(), self.stage


class TurningConfig(BCConfig):
    ALGO_NAME = "turning"


@pytest.fixture
def parts(monkeypatch):
    """Lets parts of compiled steps sleep before they run uncompiled."""

    def slow(module):
        def forward(*args):
            time.sleep(SLEEP_S)
            return module(*args)

        return forward

    monkeypatch.setattr(compiled, "_Part", slow)
    monkeypatch.setattr(compiled, "check_compiler", lambda: None)  # imports it


@pytest.fixture
def profiled(tmp_path, demos, capsys):
    """A function: overrides and arguments -> the status, the rows of the table, all lines, and the
    errors of ``offrl profile`` of 10 steps."""

    def run(overrides=None, *arguments):
        content = merge(SMALL, {"train": {"data": str(demos)}})
        path = tmp_path / "small.json"
        path.write_text(json.dumps(BC_ALGO | merge(content, overrides or {})))
        status = main(["profile", "--config", str(path), "--steps", "10", *arguments])
        said = capsys.readouterr()
        row = re.compile(r"^([\w .]+?) +([\d.]+)% +([\d.]+) +([\d.]+) +([\d.]+)$", re.M)
        rows = {name: [*map(float, numbers)] for name, *numbers in row.findall(said.out)}
        return status, rows, said.out, said.err

    return run


def acting(slow=SLEEP_S, **online):
    env = acting_in("toy_env:Toy-v0", 50) | {"env_meta_update_dict": toy_args(slow=slow)}
    online = {"horizon": 5, "collect_steps": 3, "random_steps": 9, **online}
    train = {"num_steps": 1000, "data": None, "online": online}
    small = {"critic": {"layer_dims": [8]}, "actor": {"layer_dims": [8]}}
    return {"algo_name": "sac", "experiment": env, "train": train, "algo": small}


def test_the_parts_add_up_and_only_a_picture_is_written(profiled, tmp_path):
    before = {*tmp_path.iterdir()}
    _, rows, out, _ = profiled({}, "--output", str(tmp_path / "here"))
    share, whole, _, processor = rows.pop("whole step")
    assert {"data", "preparing", "forward", "backward", "optimizer", "logging"} <= rows.keys()
    assert share == 100 == pytest.approx(sum(row[0] for row in rows.values()), abs=1)
    assert whole == pytest.approx(sum(row[1] for row in rows.values()), rel=0.01)
    assert processor == pytest.approx(sum(row[3] for row in rows.values()), rel=0.01)
    assert re.search(r"\d+ operators in a step reach a backend. No GPU is used.", out)
    assert re.search(r"Timing the parts adds -?[\d.]+% to a step", out)
    assert {*tmp_path.iterdir()} - before == {tmp_path / "here", tmp_path / "small.json"}
    (picture,) = (tmp_path / "here").iterdir()
    assert picture.name == "profile.png" and picture.read_bytes().startswith(b"\x89PNG")
    status, _, _, err = profiled({}, "--output", str(tmp_path / "here"))
    assert status == 1 and "profile.png exists" in err


def test_a_loss_that_sleeps_is_in_its_row(profiled):
    register_algo(SleepyConfig)(Sleepy)
    status, rows, out, _ = profiled({"algo_name": "sleepy"})
    assert status == 0 and rows["forward"][1] > 1e3 * SLEEP_S > rows["backward"][2]
    assert re.search(r"- forward takes \d+% of a step, and the program computes in only", out)


def test_parts_of_a_batch_that_take_turns_are_told_apart(profiled):
    register_algo(SleepyConfig)(Sleepy)
    status, rows, out, _ = profiled({"algo_name": "sleepy", "train": {"accumulate": 2}})
    assert status == 0 and rows["forward"][1] > max(2e3 * SLEEP_S, rows["optimizer"][2])
    assert "beside those of train.accumulate's threads" in out


def test_data_that_is_slow_to_read_is_in_its_row(profiled, monkeypatch):
    take = FileColumn.take

    def slow(*args):
        time.sleep(SLEEP_S)
        return take(*args)

    monkeypatch.setattr(FileColumn, "take", slow)
    _, rows, out, _ = profiled({"train": {"hdf5_cache_mode": None, "num_data_workers": 0}})
    assert rows["data"][1] > max(1e3 * SLEEP_S, rows["forward"][2])
    assert re.search(r"- data takes \d+% of a step and is read from files: hold it in .*now 0", out)


def test_batches_that_are_sent_ahead_count_as_copying(profiled, gpu, monkeypatch):  # noqa: F811
    send = Ring.send

    def slow(*args):
        time.sleep(SLEEP_S)
        return send(*args)

    monkeypatch.setattr(Ring, "send", slow)
    gpu.gets_data()
    _, rows, _, _ = profiled()
    assert rows["copying"][1] > 1e3 * SLEEP_S > rows["data"][2]


def test_gathering_several_batches_at_once_counts_for_all_of_them(profiled, monkeypatch):
    get_batch = SequenceDataset.get_batch

    def slow(*args):
        time.sleep(4 * SLEEP_S)
        return get_batch(*args)

    monkeypatch.setattr(SequenceDataset, "get_batch", slow)
    _, rows, out, _ = profiled()  # 18 windows are 4 batches of 4
    _, mean, median, _ = rows["data"]
    assert "measured:     12 steps" in out and mean > max(1e3 * SLEEP_S, median)
    assert re.search(r"- data takes \d+% of a step, though it is in memory: fewer steps", out)


def test_a_training_that_acts_is_measured_by_rounds(profiled):
    status, rows, out, _ = profiled(acting())
    assert status == 0 and "measured:     4 rounds" in out
    assert rows["environment"][1] > 3e3 * SLEEP_S > rows["acting"][2]
    assert {"storing", "data", "forward", "optimizer"} <= rows.keys()
    assert re.search(r"- environment takes \d+% of a round: .*train.online.num_envs, now 1", out)


def test_compiled_updates_have_a_row_of_their_own(profiled, parts):
    compiles = {"train": {"engine": "compile"}}
    for overrides in (compiles, merge(acting(slow=0), compiles)):
        status, rows, out, _ = profiled(overrides)
        assert status == 0 and rows["whole update"][1] > max(1e3 * SLEEP_S, rows["logging"][2])
        assert not {"forward", "backward", "optimizer"} & rows.keys()
        assert re.search(r"- whole update takes \d+% of a", out) and "logging takes" not in out


class Turns(Profiling):
    """Lets updates go another way after each of the steps ``turns``."""

    def check(self, number=None):
        self.training.algo.stage = sum(turn <= self.training.step for turn in self.turns)
        super().check(number)


@pytest.mark.parametrize("turns, last", [((8, 15), 16), (range(10), 9)])
def test_steps_are_measured_when_none_is_compiled_any_more(small_config, parts, turns, last):
    register_algo(TurningConfig)(Turning)
    num_steps = []
    for name in ("eager", "compile"):
        overrides = {"train": {"engine": name}, "experiment": {"epoch_every_n_steps": 10**9}}
        training = Trainer(small_config(overrides, "turning"))
        profiling = Turns(training, 10)
        profiling.turns = turns
        profiling()
        num_steps.append(training.step)
    eager, own = num_steps
    assert own == eager + last  # the first step of an epoch is never captured, and no ninth update


def test_what_cannot_be_measured_is_refused(profiled, capsys):
    status, _, _, err = profiled(acting() | {"distributed": {"explorers": 1}})
    assert status == 1 and "distributed.explorers: others act" in err
    status, _, _, err = profiled(acting(), "--set", "train.num_steps=30")
    assert status == 1 and "train.num_steps: the training ended before" in err
    parts = ROOT / "examples/registers/run.yaml"
    assert main(["profile", "--config", str(parts)]) == 1
    assert "run.yaml: parts of your own (alg_para)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        profiled({}, "--steps", "9")


class Noted(Profiling):
    """Notes when steps end, by itself."""

    def check(self, number=None):
        self.ends.append(time.perf_counter())
        super().check(number)


def test_it_measures_whole_steps_and_changes_none(small_config):
    register_algo(SleepyConfig)(Sleepy)
    makers = vars(Algo)["optimize"], torch.Tensor.to, torch.Tensor.backward
    config = small_config({"experiment": {"epoch_every_n_steps": 10**9}}, "sleepy")
    measured = Trainer(config)
    profiling = Noted(measured, 20)
    profiling.ends = []
    profile = profiling()
    noted = 1e3 * (profiling.ends[-3] - profiling.ends[9])  # less warming up and operators
    spent = profile.num_steps * (profile.step.mean + profile.plain.mean)
    assert spent == pytest.approx(noted, rel=0.1)  # with the replacement of functions in between
    assert makers == (vars(Algo)["optimize"], torch.Tensor.to, torch.Tensor.backward)
    assert "to" not in vars(torch.Tensor) and "train_on_batch" not in vars(measured.algo)
    config.experiment.epoch_every_n_steps = measured.step
    plain = Trainer(config)
    for record in plain():
        if record["type"] == "train":
            break
    ours, theirs = (x.algo.nets.state_dict() for x in (measured, plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_findings_on_a_gpu_name_what_helps(small_config):
    training = SimpleNamespace(config=small_config(), device=torch.device("cuda"))
    times = Part(1.0, 1.0, 1.0)
    parts = {"copying": times, "forward": times, "optimizer": times, "logging": times}
    profile = Profile(10, parts, Part(4.0, 4.0, 4.0), times, [0, 0, 0], [], 90, 300, 0.2)
    parts["optimizer"] = Part(1.1, 1.1, 1.1)
    copying, kernels, logging = advice(profile, training)
    assert copying.startswith("copying takes 25% of a step") and "train.cache_dir" in copying
    assert "computes in 20% of the time, and a step starts 300 kernels" in kernels
    assert "train.batch_size" in kernels and logging.startswith("logging takes 25%")
    busy = replace(profile, parts={"forward": Part(4.0, 4.0, 1.0)}, gpu_share=0.9)
    whole = replace(profile, parts={"whole update": Part(4.0, 4.0, 1.0)})
    assert "starts 300 kernels" in next(advice(whole, training))
    training.config.train.engine = "graph"
    assert not [*advice(whole, training)]
    training.config.train.engine = "eager"
    copies = replace(profile, parts={"other Python": Part(4.0, 4.0, 1.0)})  # and starts nothing
    assert not [*advice(busy, training), *advice(copies, training)]
