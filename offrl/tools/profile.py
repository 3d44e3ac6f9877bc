"""Show the time that each part of a training step takes. Nothing is written but a picture.

example: offrl profile --config bc.json --set train.batch_size=256 --output profile
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offrl.lazy import needed, torch
from offrl.outputs import new_file
from offrl.tools import add_options, ten_or_more
from offrl.tools.train import add_config_arguments, read_config

if TYPE_CHECKING:
    from offrl.training.profile import Profile

NEVER = 10**9  # steps: no epoch ends while steps are measured
SHOWN = 8  # operators
ARITHMETIC = ("forward", "backward", "optimizer", "whole update")  # parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_config_arguments(parser)
    add("--dataset", help="HDF5 file, instead of the config's train.data")
    add(
        "--steps",
        type=ten_or_more,
        default=200,
        help="least number of steps to measure, beside as many whose parts are not timed; of an "
        "online training, in its environments (default: 200)",
    )
    add("--output", dest="folder", metavar="FOLDER", help="folder for a picture, profile.png")
    add_options(parser, "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from contextlib import closing

    from offrl.config.pipeline import PipelineConfig
    from offrl.reports.plot import write_profile
    from offrl.training import OnlineTraining, Trainer
    from offrl.training.profile import Profiling

    picture = None
    if args.folder:
        needed("matplotlib.figure", "plot", "no picture (--output)")
        picture = new_file(Path(args.folder) / "profile.png")
    config, config_file = read_config(args)
    if isinstance(config, PipelineConfig):
        raise ValueError(
            f"{config_file}: parts of your own (alg_para), and only they know what a step is; "
            "profile measures the trainings of algorithms (algo_name)"
        )
    if config.distributed.explorers:
        raise ValueError(
            "distributed.explorers: others act while this process learns; set it to 0 to measure "
            "acting and learning in turn"
        )
    config.experiment.validate, config.experiment.epoch_every_n_steps = False, NEVER
    with closing((OnlineTraining if config.train.num_steps else Trainer)(config)) as training:
        profile = Profiling(training, args.steps)()
        print(*table(profile, training), sep="\n")
        arithmetic = profile.share(*ARITHMETIC)
        nothing = f"nothing stands out; {arithmetic:.0%} is arithmetic of the networks"
        print(*(f"- {x}" for x in [*advice(profile, training)] or [nothing]), sep="\n")
    if picture:
        title = f"{config_file.name}: one {_unit(training)} on {_device(training)}"
        parts = {name: part.mean for name, part in profile.parts.items()}
        operators = [(name[:50], ms) for name, _, ms in profile.operators[:SHOWN]]
        write_profile(picture, title, parts, profile.plain.median, operators)
        print(f"picture: {picture}")
    return 0


def _unit(training: Any) -> str:
    return "round" if training.config.train.num_steps else "step"


def _device(training: Any) -> str:
    is_cpu = training.device.type == "cpu"
    return "a CPU" if is_cpu else torch.cuda.get_device_name(training.device)


def table(profile: "Profile", training: Any) -> Iterator[str]:
    """Write the figures as lines."""
    from offrl.parallel import num_cores

    config, unit = training.config, _unit(training)
    num_samples = config.train.samples_per_step
    yield f"algorithm:    {config.algo_name}, with {num_samples} samples an update"
    yield f"device:       {_device(training)}"
    yield f"threads:      {torch.get_num_threads()}, on {num_cores()} cores"
    yield f"measured:     {profile.num_steps} {unit}s"
    if config.train.num_steps:
        online = config.train.online
        yield f"a round:      {online.collect_steps} steps in each environment, and the updates due"
        yield f"environments: {online.num_envs}"
    yield f"\n{f'part of a {unit}':24}  share         ms  median ms  processor ms"
    for name, part in {**profile.parts, f"whole {unit}": profile.step}.items():
        yield f"{name:24}{part.mean / profile.step.mean:7.1%}{_numbers(part)}"
    yield f"{f'{unit} of untimed parts':31}{_numbers(profile.plain)}"
    low, median, high = profile.cost
    yield (
        f"Timing the parts adds {median:.1%} to a {unit}; half of the comparisons say from "
        f"{low:.1%} to {high:.1%}."
    )
    kernels = "No GPU is used."
    if training.device.type != "cpu":
        kernels = (
            f"{profile.num_kernels:.0f} kernels run on the GPU, which computes in "
            f"{profile.gpu_share:.0%} of the time."
        )
    beside = " (beside those of train.accumulate's threads)" if config.train.accumulate > 1 else ""
    yield f"{profile.num_operators} operators in a {unit} reach a backend{beside}. {kernels}"
    yield f"\n{'slowest operators':40}  calls         ms  (recording slows them)"
    for name, calls, ms in profile.operators[:SHOWN]:
        yield f"{name:40.40}{calls:7.0f}{ms:11.3f}"
    yield ""


def _numbers(part: Any) -> str:
    return f"{part.mean:11.3f}{part.median:11.3f}{part.processor:14.3f}"


def advice(profile: "Profile", training: Any) -> Iterator[str]:
    """Write a sentence for each finding, with the keys that matter."""
    from offrl.parallel import num_cores

    online, unit = training.config.train.online, _unit(training)
    is_cpu, num_threads = training.device.type == "cpu", torch.get_num_threads()
    takes = {name: f"{name} takes {profile.share(name):.0%} of a {unit}" for name in profile.parts}
    large = [name for name in profile.parts if profile.share(name) > 0.3]
    num_envs = f"train.online.num_envs, now {online.num_envs}"
    if "data" in large and not training.config.train.num_steps:
        yield f"{takes['data']}{_remedy(training)}"
    if profile.share("copying") > 0.2 and not is_cpu:
        yield (
            f"{takes['copying']}: data lies on the GPU if it is held in memory or mapped "
            "(train.cache_gb, train.cache_dir) and takes less than half of what is free there"
        )
    calls = profile.share("preparing", *ARITHMETIC)
    starts_each = training.config.train.engine != "graph"
    if starts_each and profile.num_kernels > 50 and profile.gpu_share < 0.5 < calls:
        yield (
            f"the GPU computes in {profile.gpu_share:.0%} of the time, and a {unit} starts "
            f"{profile.num_kernels:.0f} kernels: starting them is what takes the time, and a "
            "larger train.batch_size costs nothing until the GPU is busy"
        )
    if profile.share("logging") > 0.1:
        yield f"{takes['logging']}: let update return fewer numbers, and log_info do less"
    if "environment" in large:
        yield (
            f"{takes['environment']}: more of them ({num_envs}) run on several cores where that is "
            "faster, and explorers (distributed.explorers) act while the policy learns"
        )
    if "acting" in large:
        yield f"{takes['acting']}: one call serves all environments, also more ({num_envs})"
    waits = {
        name: part
        for name, part in profile.parts.items()
        if name in large and name not in ("data", "environment")
        if is_cpu and part.processor < 0.5 * part.mean
    }
    if waits:
        busy = sum(x.processor for x in waits.values()) / sum(x.mean for x in waits.values())
        yield (
            f"{' and '.join(takes[name] for name in waits)}, and the program computes in only "
            f"{busy:.0%} of that time: it sleeps, or waits for a file, a lock or a core that "
            "others use"
        )
    if is_cpu and num_threads > num_cores():
        yield (
            f"{num_threads} threads on {num_cores()} cores wait for one another: set the "
            f"environment variable OMP_NUM_THREADS={num_cores()}"
        )


def _remedy(training: Any) -> str:
    """Say what helps where reading data takes long."""
    from offrl.data.datasets import num_readers

    train = training.config.train
    if not training.dataset.is_streamed:
        return (
            ", though it is in memory: fewer steps in a window (train.seq_length, "
            "train.frame_stack) and fewer observations are less to gather"
        )
    ahead = f"read ahead in processes (train.num_data_workers, now {num_readers(train)})"
    hold = "hold it in memory (train.cache_gb), map it (train.cache_dir), or "
    return f" and is read from files: {hold}{ahead}"
