"""The scripts of docs/migrating: offrl's, and those of the libraries that users come from."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import programs
import pytest
import torch
from conftest import ROOT

SCRIPTS = ROOT / "docs/migrating"
LIFT = ROOT / "datasets/lift/low_dim.hdf5"

# A script of another library, run where that is importable. robomimic's environments need
# simulators of long ago: in their place is offrl's, with robomimic's methods.
IN_PEER = """
import runpy, sys
sys.path.insert(0, {benchmarks!r})
import peers
peers.{peer}.make_importable()
if {peer!r} == "ROBOMIMIC":
    from robomimic.utils import file_utils
    from offrl.envs import make_env
    from offrl.envs.robomimic_face import RobomimicFace
    file_utils.env_from_checkpoint = lambda ckpt_dict: (
        RobomimicFace(make_env(ckpt_dict["env_metadata"])), ckpt_dict
    )
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder, *command, run=programs.run):
    """What a script printed, run in ``folder``."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def ours(folder, name, *options):
    return run(folder, SCRIPTS / name, *options)


@pytest.fixture(scope="module")
def theirs():
    """A function that runs a script where its library is installed."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import peers
    finally:
        sys.path.pop(0)

    def run_in_peer(folder, name, *options):
        peer = "ROBOMIMIC" if "robomimic" in name else "D3RLPY"
        try:
            getattr(peers, peer).install()
        except RuntimeError as error:
            pytest.skip(f"{getattr(peers, peer).requirement}: {error}")
        script = IN_PEER.format(benchmarks=str(ROOT / "benchmarks"), peer=peer)
        command = "-c", script, SCRIPTS / name, *options
        return run(folder, *command, run=subprocess.run)  # with other libraries

    return run_in_peer


def lift_options(folder, output, epochs, steps):
    """Of both scripts that train on Lift, with fewer steps than on the page."""
    config = json.loads((SCRIPTS / "lift.json").read_text())
    config["experiment"]["epoch_every_n_steps"] = steps
    config["train"]["num_epochs"] = epochs
    path = folder / "lift.json"
    path.write_text(json.dumps(config))
    return ["--config", path, "--dataset", LIFT, "--output", output]


def losses(printed):
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss (\S+)$", printed, re.M)]


def episodes(printed):
    return re.findall(r"^episode (\d): \d+\.\d\d (?:True|False)$", printed, re.M)


@pytest.fixture
def pendulum(tmp_path):
    path = tmp_path / "pendulum.hdf5"
    ours(tmp_path, "pendulum.py", "--output", path, "--n", 5)
    return path


@pytest.mark.slow
def test_robomimics_training_script_in_offrl(tmp_path):
    printed = ours(tmp_path, "robomimic_after.py", *lift_options(tmp_path, "after.pth", 2, 5))
    assert "algorithm: BC_RNN_GMM" in printed and len(losses(printed)) == 2
    options = ["--checkpoint", "after.pth", "--n", 2, "--horizon", 5]
    assert episodes(ours(tmp_path, "robomimic_rollout_after.py", *options)) == ["0", "1"]


@pytest.mark.slow
def test_d3rlpys_script_in_offrl(pendulum, tmp_path):
    options = ["--dataset", pendulum, "--epochs", 1, "--steps", 20]
    printed = ours(tmp_path, "d3rlpy_after.py", *options)
    assert re.search(r"TD_Error \S+", printed) and re.search(r"^return -\d+$", printed, re.M)
    assert list(tmp_path.glob("runs/pendulum/*/last.pth"))


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_robomimics_script_and_offrls_train_alike_and_read_each_others_policies(theirs, tmp_path):
    before, after = tmp_path / "before.pth", tmp_path / "after.pth"
    printed = [
        theirs(tmp_path, "robomimic_before.py", *lift_options(tmp_path, before, 3, 60)),
        ours(tmp_path, "robomimic_after.py", *lift_options(tmp_path, after, 3, 60)),
    ]
    assert all("algorithm: BC_RNN_GMM\n" in text for text in printed)
    figures = np.array([losses(text) for text in printed])
    assert figures.shape == (2, 3) and (np.diff(figures) < -1).all()  # both learn
    # Initial weights and batches are not the same.
    np.testing.assert_allclose(figures[0], figures[1], atol=1.5)

    exported = tmp_path / "exported.pth"
    run(tmp_path, "-m", "offrl", "export-robomimic", after, exported)
    content = torch.load(exported, weights_only=True)
    content["model"] = content["model"]["nets"]  # for versions before 0.5, as the page says
    torch.save(content, exported)
    short = ["--n", 2, "--horizon", 10]
    for script, checkpoint in (
        (ours, before),
        (ours, after),
        (theirs, before),
        (theirs, exported),
    ):
        name = f"robomimic_rollout_{'after' if script is ours else 'before'}.py"
        printed = script(tmp_path, name, "--checkpoint", checkpoint, *short)
        assert episodes(printed) == ["0", "1"], (name, checkpoint)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_d3rlpys_script_and_offrls_reach_alike_returns(theirs, tmp_path):
    data = tmp_path / "pendulum.hdf5"
    ours(tmp_path, "pendulum.py", "--output", data)
    options = ["--dataset", data, "--epochs", 2, "--steps", 500]
    for script, name in ((theirs, "d3rlpy_before.py"), (ours, "d3rlpy_after.py")):
        printed = script(tmp_path, name, *options)
        reached = float(re.search(r"^return (-\d+)$", printed, re.M)[1])
        assert reached > -400, name  # a pole that hangs gets some -1200
    assert list(tmp_path.glob("runs/pendulum/*/models/*.pth"))
