"""``offrl playback``: demonstrations as a film or a picture."""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from offrl.outputs import new_file, whole_file
from offrl.tools import add_options, count

HELP = "film demonstrations: from simulator states, by executing their actions, or stored images"
EPILOG = "example: offrl playback datasets/lift/low_dim.hdf5 --n 5 --output lift.mp4"
FOLLOWED = 0.01  # metres, radians or their rates: farther away, a replay is another episode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="a file or folder of demonstrations")
    parser.add_argument(
        "--output", metavar="MP4", help="the film to write, or the PNG with --first"
    )
    parser.add_argument(
        "--n", type=count, default=5, help="how many demonstrations, from the first on (default: 5)"
    )
    parser.add_argument(
        "--use",
        choices=("states", "actions", "images"),
        help="states: render the recorded states. actions: execute the actions again, print and "
        "plot how far the states differ. images: show stored images (default: states of "
        "robosuite's data, otherwise images, otherwise actions)",
    )
    parser.add_argument(
        "--first", action="store_true", help="show only the first frames, in one picture"
    )
    parser.add_argument(
        "--cameras",
        nargs="+",
        default=[],
        help="cameras to show side by side (default: that of the task)",
    )
    parser.add_argument("--size", type=count, help="height and width of rendered frames in pixels")
    add_options(parser, "--filter-key", "--workers", "--follow-links", "--module")


def run(args: argparse.Namespace) -> int:
    from offrl.data.files import find_data
    from offrl.envs.rendering import needed_backend
    from offrl.reports.playback import Player
    from offrl.video import encoder

    path, cameras = str(find_data(args.data)), tuple(args.cameras)
    player = Player(path, args.use, cameras, args.size)
    if args.size and player.use == "images":
        raise ValueError("--size is of what is rendered; stored images have theirs")
    if not args.output and (args.first or player.use != "actions"):
        raise ValueError("--output: name the file to write (only --use actions does without)")
    kind, suffix = ("a picture (--first)", ".png") if args.first else ("a film", ".mp4")
    if args.output and Path(args.output).suffix != suffix:
        raise ValueError(f"--output is {kind}: call it NAME{suffix}, not {args.output}")
    output = new_file(args.output) if args.output else None
    demos, backend = player.chosen(args.filter_key, args.n), None
    player.demos.close()
    if output and player.use != "images":
        backend = needed_backend(f"--use {player.use}")
    job = _Job(demos, args.workers, backend)
    look = _Look(path, player.use, cameras, args.size)
    if args.first and output:
        _photograph(output, look, job)
    elif output:
        encoder()
        _film(output, look, job)
    else:
        _replay(path, job)
    return 0


class _Look(NamedTuple):
    """What is filmed, and how: what processes are told."""

    path: str
    use: str
    cameras: tuple[str, ...]
    size: int | None


class _Job(NamedTuple):
    """What is to be done with each of the demonstrations, in processes."""

    demos: list[str]
    num_workers: int | None
    backend: str | None

    def results(self, make_worker: Any, arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        from tqdm import tqdm

        from offrl.processes import in_order

        environ = {"MUJOCO_GL": self.backend or "disabled"}
        results = in_order(make_worker, arguments, self.demos, self.num_workers, environ)
        with closing(results):
            bar = tqdm(results, total=len(self.demos), unit="demo", disable=None)
            yield from zip(self.demos, bar, strict=True)


def _photograph(output: Path, look: _Look, job: _Job) -> None:
    import imageio.v3

    from offrl.reports.playback import make_photographer, tiled

    frames = [frame for _, frame in job.results(make_photographer, look)]
    with whole_file(output) as partial:
        imageio.v3.imwrite(partial, tiled(frames), extension=".png")
    print(f"{output}: the first frames of {len(frames)} demonstrations")


def _film(output: Path, look: _Look, job: _Job) -> None:
    from offrl.reports.playback import make_filmer
    from offrl.reports.plot import write_divergence
    from offrl.video import join_videos

    plot = output.with_name(f"{output.stem}-divergence.png")
    if look.use == "actions":
        new_file(plot)
    with tempfile.TemporaryDirectory(prefix=f".{output.stem}.", dir=output.parent) as folder:
        films = dict(job.results(make_filmer, (*look, folder)))
        if len(shapes := {film.shape for film in films.values()}) > 1:
            raise ValueError(f"{look.path}: frames of {sorted(shapes)} make no film; choose others")
        join_videos(output, [Path(folder) / f"{demo}.mp4" for demo in job.demos])
    print(f"{output}: {len(films)} demonstrations by their {look.use}")
    if look.use == "actions":
        played = {demo: film.divergence for demo, film in films.items()}
        _say(played)
        write_divergence(plot, {demo: found.of_steps for demo, found in played.items()})
        print(plot)


def _replay(path: str, job: _Job) -> None:
    from offrl.reports.playback import make_replayer

    _say(dict(job.results(make_replayer, (path,))))


def _say(played: Mapping[str, Any]) -> None:
    """How far each demonstration's replay went astray, and whether it succeeded."""
    for demo, (of_steps, success) in played.items():
        largest = max(of_steps)
        outcome = {True: ", succeeds", False: ", does not succeed", None: ""}[success]
        left = next((step for step, gap in enumerate(of_steps) if not gap <= FOLLOWED), None)
        where = "follows the recording" if left is None else f"leaves the recording at step {left}"
        print(
            f"{demo}: largest difference {largest:.2g} at step {of_steps.index(largest)} of "
            f"{len(of_steps)}{outcome}; {where}"
        )
