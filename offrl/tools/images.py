"""``offrl images``: what cameras would have seen of recorded demonstrations."""

import argparse
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from offrl.tools import count
from offrl.tree import gather, merge

HELP = "copy a dataset with camera images, rendered from its simulator states"
EPILOG = (
    "example: offrl images --dataset datasets/lift/low_dim.hdf5 --n 20 --cameras agentview "
    "robot0_eye_in_hand --size 84 --output lift_images.hdf5"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", required=True, help="HDF5 file with states and model_file")
    parser.add_argument("--output", required=True, help="the HDF5 file to write")
    parser.add_argument("--cameras", nargs="+", default=["agentview"], help="(default: agentview)")
    parser.add_argument("--depth", action="store_true", help="depth maps as well")
    parser.add_argument("--size", type=count, default=84, help="height and width (default: 84)")
    parser.add_argument("--filter-key", help="only the demonstrations of mask/FILTER_KEY")
    parser.add_argument("--n", type=count, help="only the first n of them")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from offrl.config.files import find_file
    from offrl.data.hdf5 import DemoFile
    from offrl.data.writer import DemoWriter
    from offrl.envs import make_env
    from offrl.envs.rendering import INSTALL_HINT, working_backend
    from offrl.robomimic.configs import env_args_for_robomimic

    if working_backend() is None:
        raise ValueError(f"no rendering back end works here; {INSTALL_HINT}")
    with DemoFile(find_file(args.dataset)) as file:
        if file.env_args is None:
            raise ValueError(f"{file.path}: names no environment (env_args) to render")
        kwargs = {
            "use_camera_obs": True,
            "has_offscreen_renderer": True,
            "camera_names": args.cameras,
            "camera_depths": args.depth,
            "camera_heights": args.size,
            "camera_widths": args.size,
        }
        env_args = merge(file.env_args, {"env_kwargs": kwargs})
        demos = file.demos(args.filter_key, args.n)
        with (
            DemoWriter(args.output, env_args_for_robomimic(env_args)) as writer,
            writer.repeatable(),
            closing(make_env(env_args)) as env,
        ):
            for demo in tqdm(demos, unit="demo", disable=None):
                writer.write(play_back(env, file.recording(demo)), source=demo)
            writer.write_split()
    print(f"{args.output}: {len(demos)} demonstrations with images of {', '.join(args.cameras)}")
    return 0


def play_back(env: Any, demo: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded episode with images ``obs/KEY`` ``[T, H, W, C]`` of its states added."""
    import numpy as np

    images = []
    for t, state in enumerate(demo["states"]):
        model = {"model": demo["model_file"]} if t == 0 else {}
        obs = env.reset_to({"states": state, **model})
        images.append({k: v for k, v in obs.items() if k.endswith(("_image", "_depth"))})
    return {**demo, **{f"obs/{key}": value for key, value in gather(np.stack, images).items()}}
