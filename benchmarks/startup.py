"""What it costs to begin: the processor time of commands that hardly do anything.

    python benchmarks/startup.py [--repeats 7]

Each contestant is a process of its own. The bare ones import PyTorch, h5py and NumPy and do the
same work in a few lines: they read the demonstrations, build the network and make one step, or load
the weights and choose one action, or read every array of the demonstrations.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

from measure import alternate, machine, markdown, spread

from offrl.config.files import find_file

DATA = find_file("datasets/lift/low_dim.hdf5")
KEYS = ("object", "robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
NETWORK = """
from torch import nn
layers = [nn.Linear(obs.shape[1], 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
net = nn.Sequential(*layers, nn.Linear(1024, actions.shape[1]), nn.Tanh())
"""
BARE_STEP = f"""
import os, h5py, numpy as np, torch
with h5py.File({str(DATA)!r}) as file:
    demos = [file["data"][name] for name in file["data"]]
    obs = np.concatenate([np.concatenate([d["obs"][k][:] for k in {KEYS}], 1) for d in demos])
    actions = np.concatenate([demo["actions"][:] for demo in demos])
obs, actions = torch.from_numpy(obs).float(), torch.from_numpy(actions).float()
{NETWORK}
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True)
rows = torch.randint(len(obs), (100,))
nn.functional.mse_loss(net(obs[rows]), actions[rows]).backward()
optimizer.step()
os._exit(0)
"""
FIRST_STEP = """
import os, sys
from offrl.__main__ import main
from offrl.kernels import optim
step = optim.LeanOptimizer.step
def first(self):
    step(self)
    os._exit(0)
first.hooked = True
optim.LeanOptimizer.step = first
sys.exit(main(sys.argv[1:]))
"""
BARE_ACTION = (
    """
import sys, numpy as np, torch
weights = torch.load(sys.argv[1], weights_only=True)["model"]["nets"]
names = [name.removesuffix("weight") for name in weights if name.endswith("weight")]
linear = [(weights[name + "weight"], weights[name + "bias"]) for name in names]
obs, actions = torch.zeros(1, linear[0][0].shape[1]), torch.zeros(1, linear[-1][0].shape[0])
"""
    + NETWORK
    + """
for layer, (weight, bias) in zip([m for m in net if isinstance(m, nn.Linear)], linear):
    layer.load_state_dict({"weight": weight, "bias": bias})
with torch.no_grad():
    print(net(obs).numpy())
"""
)
ONE_ACTION = """
import sys, numpy as np
from offrl import policy_from_checkpoint
policy, content = policy_from_checkpoint(sys.argv[1], device="cpu")
policy.start_episode()
shapes = content["shape_metadata"]["all_shapes"]
print(policy({key: np.zeros(shape) for key, shape in shapes.items()}))
"""
BARE_INFO = f"""
import h5py, numpy as np
def arrays(group):
    for name in group:
        item = h5py.h5o.open(group, name)
        if isinstance(item, h5py.h5g.GroupID):
            yield from arrays(item)
        else:
            yield item
with h5py.File({str(DATA)!r}) as file:
    for item in arrays(file["data"].id):
        rows = np.empty(item.shape, item.dtype)
        item.read(h5py.h5s.ALL, h5py.h5s.ALL, rows)
        rows.min(), rows.max()
"""
FIVE_STEPS = [
    *("train", "--config", "bc.json"),
    *("--set", "train.num_epochs=1", "--set", "experiment.epoch_every_n_steps=5"),
    *("--set", "experiment.rollout.enabled=false"),
]


def seconds(*arguments: str) -> Callable[[], float]:
    """The processor time of Python with these arguments, in user and system mode."""

    def run() -> float:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        errors = process.stderr.read() if process.stderr else b""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise ChildProcessError(errors.decode())
        return usage.ru_utime + usage.ru_stime

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="file for every measured second")
    args = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as offrl train does
    with tempfile.TemporaryDirectory() as folder:
        train = [*FIVE_STEPS, "--output", folder]
        seconds("-m", "offrl", *train)()
        checkpoint = str(next(Path(folder).glob("bc/*/last.pth")))
        found = alternate(
            {
                "bare step": seconds("-c", BARE_STEP),
                "first step": seconds("-c", FIRST_STEP, *train),
                "five steps": seconds("-m", "offrl", *train),
                "bare action": seconds("-c", BARE_ACTION, checkpoint),
                "one action": seconds("-c", ONE_ACTION, checkpoint),
                "bare info": seconds("-c", BARE_INFO),
                "help": seconds("-m", "offrl", "--help"),
                "info": seconds("-m", "offrl", "info", str(DATA)),
            },
            args.repeats,
        )
    if args.json:
        args.json.write_text(json.dumps(found))
    rows = []
    for name, what, bare in (
        ("bare step", "bare: one step", ""),
        ("first step", "`offrl train` up to the first step", "bare step"),
        ("five steps", "`offrl train`, five steps, the whole", "bare step"),
        ("bare action", "bare: one action", ""),
        ("one action", "`policy_from_checkpoint`, one action", "bare action"),
        ("bare info", "bare: the range of each array of a dataset", ""),
        ("info", "`offrl info` of a dataset", "bare info"),
        ("help", "`offrl --help`", ""),
    ):
        more = f"{median(found[name]) - median(found[bare]):+.2f}" if bare else "-"
        rows.append([what, spread(found[name]), more])
    print(markdown(["what", "processor seconds", "beside the bare one"], rows))
    print(machine())
    return 0


if __name__ == "__main__":
    sys.exit(main())
