"""Film demonstrations: from simulator states, by executing their actions, or stored images.

example: offrl playback datasets/lift/low_dim.hdf5 --n 5 --output lift.mp4
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from offrl.outputs import new_file, whole_file
from offrl.tools import add_options, count, with_bar

FOLLOWED = 0.01  # metres, radians or their rates: largest difference of a faithful replay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("data", metavar="DATA", help="a file or folder of demonstrations")
    add("--output", metavar="MP4", help="the film to write, or the PNG with --first")
    add(
        "--n", type=count, default=5, help="how many demonstrations, from the first on (default: 5)"
    )
    add(
        "--use",
        choices=("states", "actions", "images"),
        help="states: render the recorded states. actions: execute the actions again, print and "
        "plot how far the states differ. images: show stored images (default: states of "
        "robosuite's data, otherwise images, otherwise actions)",
    )
    add("--first", action="store_true", help="show only the first frames, in one picture")
    add(
        "--cameras",
        nargs="+",
        default=[],
        help="cameras to show side by side (default: that of the task)",
    )
    add(
        "--size",
        type=count,
        help="height and width in pixels of the frames that robosuite renders (default: 384)",
    )
    add_options(parser, "--filter-key", "--workers", "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.data.formats.files import find_data
    from offrl.envs.rendering import needed_backend
    from offrl.processes import in_order
    from offrl.reports.playback import DemoPlayer, make_player, tiled
    from offrl.video import encoder

    path, cameras = str(find_data(args.data)), tuple(args.cameras)
    player = DemoPlayer(path, args.use, cameras, args.size)
    if args.size and player.use == "images":
        raise ValueError("--size is of what is rendered; stored images have theirs")
    if not args.output and (args.first or player.use != "actions"):
        raise ValueError("--output: name the file to write (only --use actions does without)")
    kind, suffix = ("a picture (--first)", ".png") if args.first else ("a film", ".mp4")
    if args.output and Path(args.output).suffix != suffix:
        raise ValueError(f"--output is {kind}: call it NAME{suffix}, not {args.output}")
    output = new_file(args.output) if args.output else None
    demos = player.chosen(args.filter_key, args.n)
    player.demos.close()
    renders = output is not None and player.use != "images"
    backend = needed_backend(f"--use {player.use}") if renders else "disabled"
    looks = (cameras, args.size) if output else ((), None)

    def of_all(method: str, *arguments: Any) -> dict[str, Any]:
        """Call a method of ``DemoPlayer`` for each demonstration in worker processes."""
        made = (path, player.use, *looks, method, *arguments)
        played = in_order(make_player, made, demos, args.workers, {"MUJOCO_GL": backend})
        with with_bar(played, len(demos)) as bar:
            return dict(zip(demos, bar, strict=True))

    if output is None:
        _print_divergence(of_all("diverge"))
    elif args.first:
        import imageio.v3

        frames = [*of_all("first_frame").values()]
        with whole_file(output) as file:
            imageio.v3.imwrite(file, tiled(frames), extension=".png")
        print(f"{output}: the first frames of {len(frames)} demonstrations")
    else:
        encoder()
        _film(output, path, player.use, of_all)
    return 0


def _film(output: Path, path: str, use: str, of_all: Callable[..., dict[str, Any]]) -> None:
    from offrl.reports.plot import write_divergence
    from offrl.video import join_videos

    plot = output.with_name(f"{output.stem}-divergence.png")
    if use == "actions":
        new_file(plot)
    with tempfile.TemporaryDirectory(prefix=f".{output.stem}.", dir=output.parent) as folder:
        films = of_all("film", folder)
        if len(shapes := {film.shape for film in films.values()}) > 1:
            raise ValueError(f"{path}: frames of {sorted(shapes)} make no film; choose others")
        join_videos(output, [Path(folder) / f"{demo}.mp4" for demo in films])
    print(f"{output}: {len(films)} demonstrations by their {use}")
    if use == "actions":
        played = {demo: film.divergence for demo, film in films.items()}
        _print_divergence(played)
        write_divergence(plot, {demo: found.of_steps for demo, found in played.items()})
        print(plot)


def _print_divergence(played: Mapping[str, Any]) -> None:
    """Print how far each demonstration's replay diverged, and whether it succeeded."""
    for demo, (of_steps, success) in played.items():
        largest = max(of_steps)
        outcome = {True: ", succeeds", False: ", does not succeed", None: ""}[success]
        left = next((step for step, gap in enumerate(of_steps) if not gap <= FOLLOWED), None)
        where = "follows the recording" if left is None else f"leaves the recording at step {left}"
        print(
            f"{demo}: largest difference {largest:.2g} at step {of_steps.index(largest)} of "
            f"{len(of_steps)}{outcome}; {where}"
        )
