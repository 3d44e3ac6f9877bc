"""Algorithms of users' own that do what an algorithm should not."""

import json
import os
import re
import sys

import programs
import pytest
from comparison import records
from conftest import ROOT, SMALL

from offrl.__main__ import main
from offrl.tree import merge

MODULE = """
import sys
import numpy as np
import torch
from offrl import register_algo
from offrl.algos.bc import BC, BCConfig


class {name}Config(BCConfig):
    ALGO_NAME = "{name}"


@register_algo({name}Config)
class Own(BC):
{body}
"""
UPDATE = """    def update(self, batch):
        info = super().update(batch)
        return {} if self.epoch == 1 else info
"""


def update(answer):
    return UPDATE.replace("{}", answer)


def log_info(answer):
    return f"    def log_info(self, info):\n        return {answer}\n"


STEP = r"step 1 \(epoch 1\): "
EXPECTED = "return a dict of tensors of one number each, 'loss' among them"
CASES = {
    "none": (update("None"), f"{STEP}update returned no 'loss', but nothing; {EXPECTED}"),
    "empty": (update("dict()"), f"{STEP}update returned no 'loss', but nothing; {EXPECTED}"),
    "tensor": (update("info['loss']"), f"{STEP}update returned a Tensor; {EXPECTED}"),
    "list": (update("[info['loss']]"), f"{STEP}update returned a list; {EXPECTED}"),
    "number": (update("0.5"), f"{STEP}update returned a float; {EXPECTED}"),
    "no_loss": (update("{'l2': info['loss']}"), f"{STEP}update returned no 'loss', but l2"),
    "text": (update("info | {'note': 'good'}"), f"{STEP}update returned a str as 'note'"),
    "text_loss": (update("{'loss': 'good'}"), f"{STEP}update returned a str as 'loss'"),
    "nested": (update("{'loss': {'total': 1.0}}"), f"{STEP}update returned a dict as 'loss'"),
    "nan": (update("info | {'loss': info['loss'] * float('nan')}"), "NaN or infinite at step 1"),
    "log_nan": (
        log_info("super().log_info(info) | {'Q': float('nan')}"),
        r"step 5 \(epoch 1\): log_info returned nan as 'Q'; a finite float is expected",
    ),
    "log_infinite": (
        log_info("super().log_info(info) | {'Q': np.inf}"),
        r"step 5 \(epoch 1\): log_info returned inf as 'Q'; a finite float",
    ),
    "log_tensor": (
        log_info("super().log_info(info) | {'Q': torch.zeros(3)}"),
        r"step 5 \(epoch 1\): log_info returned tensor.*as 'Q'; a float is expected",
    ),
    "log_none": (log_info("None"), r"step 5 \(epoch 1\): log_info returned None; return a dict"),
    "log_little": (log_info("{'Q': 1.0}"), r"log_info returned only Q; return a dict .*'Loss'"),
    "no_memory": (
        update("info | {'big': torch.empty(10**14)}"),
        r"after step 0: out of memory \(.*allocate 400000000000000 bytes.*lower train.batch_size",
    ),
    "exit_update": (update("sys.exit()"), r"after step 0: the algorithm called sys.exit\(None\)"),
    "exit_epoch": (
        "    def on_epoch_end(self, epoch):\n        sys.exit(0)\n",
        r"epoch 1, after step 5: the algorithm called sys.exit\(0\)",
    ),
    "exit_log": (log_info("sys.exit(0)"), r"after step 5: the algorithm called sys.exit\(0\)"),
    "exit_networks": (
        "    def _create_networks(self):\n        sys.exit(0)\n",
        r"own_exit_networks.py, line 16 \(_create_networks\) called sys.exit\(0\)",
    ),
    "exit_batch": (
        "    def process_batch_for_training(self, batch):\n        sys.exit(3)\n",
        r"called sys.exit\(3\)",
    ),
}


@pytest.fixture
def train_own(tmp_path, demos, monkeypatch):
    """A function: name, body of the class -> exit status of a training with it."""
    monkeypatch.syspath_prepend(tmp_path)

    def train(name, body):
        name = f"own_{name}"
        module = MODULE.replace("{name}", name).replace("{body}", body)
        (tmp_path / f"{name}.py").write_text(module)
        paths = {"train": {"data": str(demos), "output_dir": str(tmp_path / "runs")}}
        content = merge(SMALL, {"algo_name": f"{name}.{name}", **paths})
        (tmp_path / "own.json").write_text(json.dumps(content))
        return main(["train", "--config", str(tmp_path / "own.json")])

    return train


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_one_sentence(train_own, capsys, case):
    body, words = CASES[case]
    assert train_own(case, body) == 1
    said = capsys.readouterr().err
    errors = [line for line in said.splitlines() if line.startswith("offrl: error:")]
    assert len(errors) == 1 and "Traceback" not in said, said
    assert re.search(words, errors[0]), errors[0]
    assert f"own_{case}" in errors[0]


def test_plain_numbers_do_no_harm(train_own, tmp_path):
    assert train_own("floats", update("info | {'beta': 0.5, 'n': 3, 'skip': None}")) == 0
    (run,) = (tmp_path / "runs/test").glob("2*")
    assert [r["type"] for r in records(run)].count("train") == 3


def test_its_own_errors_keep_their_traceback(train_own, capsys):
    assert train_own("fails", update("info['loss'] + torch.zeros(3, 4) @ torch.zeros(3)")) == 1
    first, second, *_ = capsys.readouterr().err.split("offrl: error: ")[1].splitlines()
    assert re.match(r"RuntimeError in .*own_fails.py, line 17 \(update\), which is not", first)
    assert second == "Traceback (most recent call last):"


def test_its_own_value_errors_do_so_too(train_own, capsys):
    assert train_own("refuses", update("int('many')")) == 1
    said = capsys.readouterr().err
    assert "ValueError in" in said and "own_refuses.py" in said and "Traceback" in said


def test_an_exit_when_it_is_imported_is_no_success(tmp_path, demos):
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = programs.run(
        [sys.executable, "-m", "offrl", "train", "--config", "bc.json"]
        + ["--set", "algo_name=leaves.leaves"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "leaves.py, line 2 (<module>) called sys.exit(0)" in done.stderr


@pytest.mark.parametrize(
    ("name", "own", "problem"),
    [
        ("unreadable", "np.zeros(3)", "holds pickled Python objects"),
        ("unwritable", "lambda: 1", "Can't pickle local object"),
        ("generator", "(x for x in [])", "cannot pickle 'generator' object"),
    ],
)
def test_a_state_that_is_no_checkpoint_is_said_before_the_first_step(
    train_own, capsys, name, own, problem
):
    body = f"    def serialize(self):\n        return super().serialize() | {{'own': {own}}}\n"
    assert train_own(name, body) == 1
    said = capsys.readouterr().err
    assert f"{name}: what serialize() gives cannot be in a checkpoint" in said
    assert problem in said and "Traceback" not in said and "step 1" not in said


def test_a_network_that_has_no_optimizer_is_named(train_own, capsys):
    body = "    def update(self, batch):\n        return {'loss': self.optimize('polcy', None)}\n"
    assert train_own("misspelt", body) == 1
    assert "'polcy' has no optimizer; there are policy" in capsys.readouterr().err
