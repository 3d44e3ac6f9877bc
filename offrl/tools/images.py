"""Copy a dataset, and add what cameras see in its simulator states, and what else it lacks.

example: offrl images --dataset datasets/lift/low_dim.hdf5 --n 20 --cameras agentview
robot0_eye_in_hand --size 84 --output lift_images.hdf5. Called again after it was cut off, it goes
on where it was.
"""

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offrl.tools import add_options, count, with_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dataset", required=True, help="HDF5 file with states and model_file")
    add("--output", required=True, help="the HDF5 file to write")
    cameras = "cameras to render, any number of them (default: agentview)"
    add("--cameras", nargs="*", default=["agentview"], help=cameras)
    add(
        "--size",
        nargs="+",
        type=_size,
        default=[(84, 84)],
        metavar="SIZE",
        help="size in pixels, 84 or HEIGHTxWIDTH, of all cameras or of each (default: 84)",
    )
    add(
        "--depth",
        action="store_true",
        help="also render depth maps: the depth buffer from 0 (near) to 1 (far), not metres",
    )
    kinds = ("instance", "class", "element")
    add("--segmentation", choices=kinds, help="also render which object each pixel shows")
    add("--shaped", action="store_true", help="replace the rewards by the task's dense rewards")
    add(
        "--done",
        choices=("success", "end", "both"),
        help="in which steps dones are 1 (default: as recorded, otherwise at success)",
    )
    add("--next-obs", action="store_true", help="also store the observations after each action")
    add(
        "--compression",
        choices=("png", "jpeg", "gzip", "lzf"),
        help="how images (png, jpeg) or all added arrays are compressed (default: none)",
    )
    add("--n", type=count, help="copy only the first n demonstrations (default: all)")
    add_options(parser, "--filter-key", "--workers", "--follow-links", "--module")


def _size(text: str) -> tuple[int, int]:
    """Read height and width."""
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if not match:
        raise argparse.ArgumentTypeError(f"pixels are needed, 84 or 120x160, not {text}")
    height, width = match.groups()
    return int(height), int(width or height)


def run(args: argparse.Namespace) -> int:
    from offrl.data.formats.files import find_data_file
    from offrl.data.formats.hdf5 import DemoFile
    from offrl.data.provenance import provenance
    from offrl.data.writer import DemoWriter
    from offrl.edits.edit import notes_of
    from offrl.envs.rendering import needed_backend
    from offrl.processes import in_order
    from offrl.robomimic.configs import env_args_for_robomimic

    path = find_data_file(args.dataset)
    backend = needed_backend() if args.cameras else None
    if not args.cameras and (args.depth or args.segmentation):
        raise ValueError("--depth and --segmentation are of --cameras; name some")
    with DemoFile(path) as file:
        if file.env_args is None:
            raise ValueError(f"{file.path}: names no environment (env_args) to render")
        env_args = _with_cameras(file.env_args, args)
        demos, masks = file.demos(args.filter_key, args.n), file.masks()
        with (
            DemoWriter(
                args.output,
                env_args_for_robomimic(env_args),
                compression=args.compression,
                provenance=provenance(args.words, [path]),
                resume=True,
            ) as writer,
            writer.repeatable(ValueError),
        ):
            writer.annotate(**file.attributes())
            todo = demos[writer.num_demos :]
            arguments = path, env_args, args.shaped, args.done, args.next_obs
            environ = {"MUJOCO_GL": backend or "disabled"}
            observed = in_order(make_observer, arguments, todo, args.workers, environ)
            with with_bar(observed, len(demos), done=writer.num_demos) as bar:
                for demo, trajectory in zip(todo, bar, strict=True):
                    writer.write(trajectory, **notes_of(file, demo, path.name))
            _write_masks(writer, masks, demos)
    cameras = f"images of {', '.join(args.cameras)}" if args.cameras else "observations"
    print(f"{args.output}: {len(demos)} demonstrations with {cameras}")
    return 0


def _with_cameras(env_args: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    from offrl.tree import merge

    sees = bool(args.cameras)
    kwargs: dict[str, Any] = {"use_camera_obs": sees, "has_offscreen_renderer": sees}
    if sees:
        one_for_all = len(args.size) == 1
        heights, widths = args.size[0] if one_for_all else map(list, zip(*args.size, strict=True))
        if not one_for_all and len(args.size) != len(args.cameras):
            raise ValueError(f"--size: {len(args.size)} sizes for {len(args.cameras)} cameras")
        kwargs |= {
            "camera_names": args.cameras,
            "camera_depths": args.depth,
            "camera_heights": heights,
            "camera_widths": widths,
        }
    if args.segmentation:
        kwargs["camera_segmentations"] = args.segmentation
    if args.shaped:
        kwargs["reward_shaping"] = True
    return merge(env_args, {"env_kwargs": kwargs})


def make_observer(
    path: Path, env_args: Mapping[str, Any], shaped: bool, done: str | None, next_obs: bool
) -> Callable[[str], dict[str, Any]]:
    """Make a function that returns a demonstration with the observations in its states."""
    from offrl.data.formats.hdf5 import DemoFile
    from offrl.envs import make_env
    from offrl.envs.playback import observed

    file, env = DemoFile(path), make_env(env_args)
    return lambda demo: observed(env, file.recording(demo), shaped, done, next_obs)


def _write_masks(writer: Any, before: Mapping[str, list[str]], demos: list[str]) -> None:
    """Write the remaining masks, with a new split into ``train`` and ``valid`` if all
    demonstrations were in one of them, or in none."""
    names = {demo: f"demo_{i}" for i, demo in enumerate(demos)}
    masks = {key: [names[d] for d in mask if d in names] for key, mask in before.items()}
    is_split = all(masks.get(key) for key in ("train", "valid"))
    for key, mask in masks.items():
        if mask and (is_split or key not in ("train", "valid")):
            writer.write_mask(key, mask)
    if not is_split:
        writer.write_split()
