"""What reads data and configs does not import PyTorch, which takes seconds, and what trains and
acts does not import PyTorch's compiler."""

import subprocess
import sys

import pytest
from conftest import ROOT

# A process of its own, as that of the tests has imported everything.
PROGRAM = """
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

from offrl.__main__ import main

HEAVY = ("torch", "gymnasium", "h5py", "numpy", "pydantic", "tqdm", "yaml")
folder = Path(sys.argv[1])


def check(what, *modules):
    found = [module for module in modules if module in sys.modules]
    assert not found, f"{what} imports {', '.join(found)}"


with suppress(SystemExit):
    main(["--help"])
check("offrl --help", *HEAVY)
few = str(folder / "few.hdf5")
for line in (
    f"edit subset datasets/lift/low_dim.hdf5 --n 3 --output {few}",
    f"edit rewards {few} --scale 2 --output {folder}/rewards.hdf5",
    f"edit actions {few} --action-dict --kind delta --output {folder}/actions.hdf5",
    f"info {few}",
    f"validate {few}",
):
    assert main(line.split()) == 0, line
    check(f"offrl {line}", "torch", "pydantic", "yaml")

import offrl.algos
from offrl.registry import ALGO_CONFIGS

for module in iter_modules(offrl.algos.__path__, "offrl.algos."):
    import_module(module.name)
    check(module.name, "torch")
for name in ALGO_CONFIGS.names():
    offrl.config_factory(name)
    check(f"config_factory({name!r})", "torch")

assert main(["schema", "--output", str(folder / "schema.json")]) == 0
check("offrl schema", "torch")

if find_spec("rliable") and find_spec("matplotlib"):
    from offrl.reports.results import Measurement, Outcome, write_results

    half = Measurement(0.5, 1.0, 50)
    results = [Outcome("bc", "Lift", seed, final=half, best=half) for seed in (1, 2)]
    write_results(folder / "report.csv", results)
    assert main(["report", str(folder), "--output", str(folder / "report")]) == 0
    check("offrl report", "torch")

line = f"train --config bc.json --debug --set experiment.rollout.enabled=false --output {folder}"
assert main(line.split()) == 0
(checkpoint,) = folder.glob("bc/*/last.pth")
policy, content = offrl.policy_from_checkpoint(checkpoint)
policy.start_episode()
policy({key: [0.0] * shape[0] for key, shape in content["shape_metadata"]["all_shapes"].items()})
check("training and acting", "torch._dynamo", "sympy", "matplotlib.pyplot")
assert "_learning" not in vars(policy.policy)

import torch
from offrl.algos import bc

assert (bc.torch, bc.Tensor) == (torch, torch.Tensor)  # so that a test's patches reach it
"""


@pytest.mark.slow
def test_nothing_is_imported_without_need(tmp_path):
    command = [sys.executable, "-c", PROGRAM, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
