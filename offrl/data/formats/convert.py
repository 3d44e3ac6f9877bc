"""The conversion of demonstrations from one format to another, an episode at a time."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.demos import Episodes
from offrl.data.formats import d4rl, lerobot_writer, minari
from offrl.data.formats.exchange import Conversion, StepType, StepTypes, select_arrays
from offrl.data.formats.files import open_episodes
from offrl.data.formats.hdf5 import DemoFile, located
from offrl.data.storage import StoredArray
from offrl.data.writer import DemoWriter
from offrl.images import pictures
from offrl.processes import in_order

log = logging.getLogger(__name__)

Write = Callable[[Mapping[str, Any]], Any]


class Format(NamedTuple):
    """A format to convert to."""

    name: str
    holds: Callable[[str, StepType], bool]  # whether it can store an array
    attributes: Sequence[str] | None  # attributes of an episode that it stores; None: all
    needs: Sequence[str]
    writing: Callable[[str, Conversion], AbstractContextManager[Write]]
    encoder: Callable[[Conversion], Any] | None = None  # encodes episodes before they are written


@contextmanager
def writing_robomimic(output: str, plan: Conversion) -> Iterator[Write]:
    """Make a function that adds an episode to a new file."""
    with DemoWriter(output, plan.env_args, provenance=plan.provenance, durable=False) as writer:
        writer.annotate(**plan.attributes)
        yield writer.write
        for key, demos in plan.masks.items():
            writer.write_mask(key, demos)


FORMATS = {
    "robomimic": Format("robomimic's layout", lambda *_: True, None, (), writing_robomimic),
    "d4rl": Format("D4RL's layout", d4rl.holds, (), ("rewards", "dones"), d4rl.writing),
    "minari": Format("Minari", minari.holds, (), ("rewards", "dones"), minari.writing),
} | {
    name: Format(
        "LeRobot's layout",
        lerobot_writer.holds,
        ("success", "task", "fps"),
        (),
        partial(lerobot_writer.writing, version=version),
        lerobot_writer.encoder,
    )
    for name, version in (("lerobot", "v3.0"), ("lerobot-v2.1", "v2.1"))
}


def make_plan(
    source: Episodes,
    to: str,
    obs: Sequence[str] | None = None,
    task: str | None = None,
    fps: int | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Conversion:
    """Plan what is converted, by a source's first demonstration, and log what is left out.

    obs: the observations to convert; by default those that the format can store.
    """
    demos, wanted = source.demos(), FORMATS[to]
    first = source.trajectory(demos[0])
    steps = {key: StepType.of(x) for key, x in first.items() if isinstance(x, np.ndarray)}
    chosen = {f"obs/{name}" for name in obs} if obs else None

    def is_chosen(key: str) -> bool:
        is_obs = key.startswith(("obs/", "next_obs/"))
        return not is_obs or chosen is None or key.removeprefix("next_") in chosen

    kept = {k: step for k, step in steps.items() if wanted.holds(k, step) and is_chosen(k)}
    _check(source, demos[0], to, steps, kept, chosen)
    _warn(source, to, first, kept, bool(obs))
    if isinstance(source, DemoFile):  # in other formats all demonstrations have the same arrays
        stored = (source.stored(demo) for demo in demos)
        every = {key for arrays in stored for key, x in arrays.items() if type(x) is StoredArray}
        if others := ", ".join(sorted(filter(is_chosen, every - first.keys()))):
            log.warning(f"{source.path}: left out is {others}: {demos[0]} has none")
    names = {demo: f"demo_{i}" for i, demo in enumerate(demos)}
    env_args = source.env_args
    kwargs = (env_args or {}).get("env_kwargs") or {}
    with located(source.path, "what its filter keys name"):
        masks = {key: [names[demo] for demo in mask] for key, mask in source.masks().items()}
    return Conversion(
        source=source.path,
        num_demos=len(demos),
        steps=kept,
        env_args=env_args,
        masks=masks,
        provenance=dict(provenance or {}),
        task=task,
        fps=fps or _as_count(kwargs.get("control_freq")) or _as_count(first.get("fps")),
        attributes=source.attributes(),
    )


def _warn(source: Episodes, to: str, first: dict[str, Any], kept: StepTypes, by_obs: bool) -> None:
    """Log the content of a source that is not written and why, and caveats on what is written."""
    attributes = [key for key, value in first.items() if not isinstance(value, np.ndarray)]
    arrays = [key for key in first if key not in (*attributes, *kept)]
    groups = {key.partition("/")[0] for key in kept}
    # A group that is left out as a whole is logged by its name.
    names = [k if k.partition("/")[0] in groups else k.partition("/")[0] for k in arrays]
    places, unread = FORMATS[to].attributes, source.unread()
    if places is not None:
        names += [key for key in (*source.attributes(), *attributes) if key not in places]
    if names or unread:
        reasons = [f"{FORMATS[to].name} has no place for that"] if names else []
        reasons += ["--obs does not name it"] if by_obs else []
        reasons += ["offrl does not read it"] if unread else []
        left_out = ", ".join(dict.fromkeys([*names, *unread]))
        log.warning(f"{source.path}: left out is {left_out}: {', or '.join(reasons)}")
    if turnable := [key for key in arrays if _is_held_turned(FORMATS[to], key, first[key])]:
        words = "has images of another form; to keep them, convert what offrl edit pixels writes"
        log.warning(f"{source.path}: {', '.join(turnable)} {words}")
    if "obs" not in groups:
        remedy = "go on with offrl images, which makes them, and rewards, of the simulator's states"
        log.warning(f"{source.path}: has no observations; {remedy}")
    elif FORMATS[to].needs and "next_obs" not in groups:
        log.warning(
            f"{source.path}: does not say what followed the last step of each demonstration; its "
            "last observation stands for that"
        )


def _is_held_turned(wanted: Format, key: str, array: np.ndarray) -> bool:
    """Say whether a format can store an observation only if its images are turned."""
    images = pictures(array) if key.startswith("obs/") else None
    if images is None or wanted.holds(key, StepType.of(array)):
        return False
    return wanted.holds(key, StepType.of(images))


def _check(
    source: Episodes, demo: str, to: str, steps: StepTypes, kept: StepTypes, chosen: set[str] | None
) -> None:
    """Raise ``ValueError`` if the source lacks arrays that are needed or chosen."""
    name, obs = FORMATS[to].name, [key for key in kept if key.startswith("obs/")]
    has = ", ".join(k.removeprefix("obs/") for k in steps if k.startswith("obs/")) or "none"
    words = ""
    if lacking := [key for key in FORMATS[to].needs if key not in kept]:
        words = f"{demo} has no {lacking[0]}, without which {name} cannot be; offrl images gives "
        words += "data with the simulator's states both"
    elif lacking := [key for key in chosen or () if key not in kept]:
        why = f"{name} has no place for it" if lacking[0] in steps else f"it has {has}"
        words = f"no observation {lacking[0][4:]} (--obs) to convert: {why}"
    elif to != "robomimic" and not obs:
        words = f"no observations that {name} holds (it has {has}); make some with offrl images"
    elif to == "d4rl" and chosen is None and len(obs) > 1:
        words = f"{name} has one vector of observations; choose those that are joined to it with "
        words += f"--obs; it has {has}"
    if words:
        raise ValueError(f"{source.path}: {words}")


def _as_count(frequency: Any) -> int | None:
    is_number = isinstance(frequency, int | float | np.number) and np.isfinite(frequency)
    is_whole = is_number and int(frequency) == frequency > 0
    return int(frequency) if is_whole else None


def convert(
    source: Episodes, output: str, to: str, plan: Conversion, num_workers: int | None = None
) -> Generator[str, None, None]:
    """Write the demonstrations of a source in another format, and yield the name of each.

    Raises ``FileExistsError`` if the output exists. After an error there is no output.

    num_workers: processes that read and encode; by default one per core to make films, else only
        this process, as passing arrays on takes longer than reading them.
    """
    wanted = FORMATS[to]
    encoder = wanted.encoder(plan) if wanted.encoder else None
    arguments = (to, tuple(plan.steps.items()), encoder)
    demos = source.demos()
    codes_films = encoder is not None and any(step.is_image for step in plan.steps.values())
    if num_workers == 1 or (num_workers is None and not codes_films):
        read = _reader(source, *arguments)
        episodes: Generator[Any, None, None] = (read(demo) for demo in demos)
    else:
        episodes = in_order(_reader, (str(source.path), *arguments), demos, num_workers)
    with wanted.writing(output, plan) as write, closing(episodes):
        for demo, episode in zip(demos, episodes, strict=True):
            write(episode)
            yield demo


def _reader(
    opened: Episodes | str, to: str, items: Sequence[tuple[str, StepType]], encoder: Any
) -> Callable[[str], dict[str, Any]]:
    """Make a function that reads and encodes a demonstration. opened: the source, or its path."""
    source, steps = open_episodes(opened) if isinstance(opened, str) else opened, dict(items)

    def read(demo: str) -> dict[str, Any]:
        if to != "robomimic":
            found, place = source.trajectory(demo, steps), f"{source.path}: {demo}"
            trajectory = select_arrays(found, steps, place)
            return encoder(trajectory) if encoder else trajectory
        if isinstance(opened, str):  # what is read here is sent to another process
            return source.trajectory(demo, steps)
        # Arrays are copied to the bit; frames, which robomimic does not know, become images.
        stored = source.stored(demo, steps)
        arrays = {key: value for key, value in stored.items() if isinstance(value, StepArray)}
        return stored | {k: x.read() for k, x in arrays.items() if x.packed is not None}

    return read
