"""Edits that split, merge, rename or repack demonstrations, or convert images."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np

from offrl.data.arrays import StepArray
from offrl.data.separate import SeparateArrays
from offrl.data.storage import CHUNK_BYTES, StoredArray, kind_of_step
from offrl.data.writer import split as drawn
from offrl.edits.edit import ACTION_MAP, Edit, check_range, labelled, of_files
from offrl.edits.selection import facts
from offrl.images import FORMS, Form, fitting, scaled, turned
from offrl.registry import did_you_mean, shown

log = logging.getLogger(__name__)

# Arguments of environments that change neither dynamics nor rewards.
VIEWS = (
    "camera_depths camera_heights camera_names camera_segmentations camera_widths hard_reset "
    "has_offscreen_renderer has_renderer horizon ignore_done offrl_fast render_camera "
    "render_collision_mesh render_gpu_device_id render_visual_mesh renderer renderer_config seed "
    "use_camera_obs use_object_obs"
).split()


def split(
    file: SeparateArrays,
    valid: float | None = None,
    seed: int = 0,
    by: str | None = None,
    names: Sequence[str] | None = None,
    filter_key: str | None = None,
) -> Edit:
    """Write filter keys for training and for validation, a random share ``valid`` (0.1). With
    ``by="success"``: for successes and failures, or ``valid`` of both if given."""
    share = 0.1 if valid is None and by is None else valid
    names = names or (("success", "failure") if share is None else ("train", "valid"))
    if names[0] == names[1]:
        raise ValueError(f"both filter keys would be called {names[0]!r}; give two names")
    edit, demos = of_files([file]), file.demos(filter_key)
    good = {d for d in demos if facts(file, d)["success"]()} if by == "success" else set()
    parts = [[d for d in demos if d in good], [d for d in demos if d not in good]]
    if share is not None:
        held_out = {*chain(*(drawn(part, share, seed)[1] for part in parts))}
        parts = [[d for d in demos if d not in held_out], [d for d in demos if d in held_out]]
    for name, part in zip(names, parts, strict=True):
        if not part:
            raise ValueError(
                f"{file.path}: none of {len(demos)} demonstrations would be under mask/{name}; "
                "ask for another share, or use more demonstrations"
            )
        if name in edit.masks:
            log.warning(f"{file.path}: mask/{name} is written anew")
        edit.masks[name] = [(file, demo) for demo in part]
    return edit


def merge(first: SeparateArrays, *others: SeparateArrays, masks: bool = False) -> Edit:
    """Merge the demonstrations of several files of one task, and filter keys of the same name. With
    ``masks`` add a filter key for each file, by its name."""
    files = [first, *others]
    for number, other in enumerate(others, 1):
        if any(file.path.samefile(other.path) for file in files[:number]):
            raise ValueError(f"{other.path}: would be merged with itself; name it once")
        if len({str(file.attributes().get(ACTION_MAP)) for file in (first, other)}) > 1:
            check_range(first)
            check_range(other)
        _check_same_task(first, other)
        _check_same_arrays(first, other)
    edit = of_files(files)
    for key, members in edit.masks.items():
        without = [file.path.name for file in files if file not in {f for f, _ in members}]
        if without:
            log.warning(f"mask/{key} has no demonstrations of {', '.join(without)}")
    if masks:
        for file, label in labelled(files).items():
            name = label.rpartition(".")[0].replace("/", "_") or label
            if name in edit.masks:
                remedy = "give the file another name, or merge without --masks"
                raise ValueError(f"{file.path}: there is a mask/{name} already; {remedy}")
            edit.masks[name] = [(file, demo) for demo in file.demos()]
    return edit


def rename(
    file: SeparateArrays, keys: Iterable[tuple[str, str]] = (), drop: Sequence[str] = ()
) -> Edit:
    """Rename arrays ``obs/KEY``, filter keys ``mask/KEY`` or groups of them (``keys``: pairs of old
    and new names), or ``drop`` them. ``next_obs/KEY`` follows ``obs/KEY``."""
    edit, changes = of_files([file]), {**dict.fromkeys(drop), **dict(keys)}
    if not changes:
        raise ValueError("offrl edit rename: give --keys OLD=NEW, or --drop KEY")
    there = {*_steps(file)} | {f"mask/{key}" for key in edit.masks}
    for old, new in list(changes.items()):
        if not any(key == old or key.startswith(f"{old}/") for key in there):
            raise ValueError(f"{file.path}: has no {old}; it has {', '.join(sorted(there))}")
        if new is not None and len({key.split("/")[0] == "mask" for key in (old, new)}) > 1:
            words = "filter keys are mask/KEY, and nothing else is"
            raise ValueError(f"{file.path}: {old} cannot become {new}: {words}")
        is_obs = old.startswith("obs/") and (new is None or new.startswith("obs/"))
        if is_obs and f"next_{old}" in there:
            changes.setdefault(f"next_{old}", None if new is None else f"next_{new}")

    def renamed(key: str) -> str | None:
        """Rename a path by its own entry, or else by that of its innermost group."""
        parts = key.split("/")
        for depth in range(len(parts), 0, -1):
            group = "/".join(parts[:depth])
            if group in changes:
                new = changes[group]
                return None if new is None else "/".join([new, *parts[depth:]])
        return key

    counts = Counter(filter(None, map(renamed, there)))
    if twice := [key for key, times in counts.items() if times > 1]:
        raise ValueError(f"{file.path}: two things would be called {min(twice)}; drop one of them")

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        return {
            new: value
            for key, value in file.stored(demo).items()
            if (new := renamed(key) if isinstance(value, StepArray) else key) is not None
        }

    edit.change = change
    edit.masks = {
        new.removeprefix("mask/"): members
        for key, members in edit.masks.items()
        if (new := renamed(f"mask/{key}")) is not None
    }
    return edit


def repack(
    file: SeparateArrays, compression: str | None = None, chunk_bytes: int = CHUNK_BYTES
) -> Edit:
    """Store all arrays as offrl records them: with checksums, as float32 (except simulator states),
    with a ``compression``. Images that stay JPEG are copied, as coding them again loses quality."""
    compression = None if compression == "none" else compression

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        trajectory = file.stored(demo)
        for key, value in trajectory.items():
            if isinstance(value, StepArray):
                is_kept = not value.is_number  # text and the like, which writing refuses
                if isinstance(value, StoredArray):
                    is_kept |= compression == "jpeg" == value.dataset.attrs.get("frames")
                trajectory[key] = value if is_kept else value.read()
        return trajectory

    options = {"compression": compression, "chunk_bytes": chunk_bytes}
    return of_files([file], change=change, options=options)


def _steps(file: SeparateArrays) -> dict[str, str]:
    """Return the type and shape of each array's steps, in the first demonstration."""
    arrays = file.stored(file.demos()[0]).items()
    return {key: kind_of_step(array) for key, array in arrays if isinstance(array, StepArray)}


def _check_same_task(first: SeparateArrays, other: SeparateArrays) -> None:
    """Raise ``ValueError`` unless the same actions would do the same in both environments."""
    tasks = []
    for args in (first.env_args or {}, other.env_args or {}):
        kwargs = sorted((args.get("env_kwargs") or {}).items())
        task = {"env_name": args.get("env_name"), "type": args.get("type")}
        tasks.append(task | {f"env_kwargs.{k}": v for k, v in kwargs if k not in VIEWS})
    for key in {**tasks[0], **tasks[1]}:
        one, two = (task.get(key) for task in tasks)
        if one != two:
            raise ValueError(
                f"{other.path}: has another environment: {key} is {json.dumps(one):.80} in "
                f"{first.path} and {json.dumps(two):.80} in {other.path}; merge those of one"
            )
    one, two = ((file.env_args or {}).get("env_version") for file in (first, other))
    if one != two:
        words = f"{first.path} with {one}: the same actions may do something else"
        log.warning(f"{other.path}: recorded with version {two} of the simulator, {words}")


def _check_same_arrays(first: SeparateArrays, other: SeparateArrays) -> None:
    """Raise ``ValueError`` before copying if the arrays of two files differ."""
    ones, others = _steps(first), _steps(other)
    for key in sorted({key for key, _ in ones.items() ^ others.items()}):
        if key not in ones or key not in others:
            has, lacks = (first, other) if key in ones else (other, first)
            remedy = f"leave it out there: offrl edit rename {has.path} --drop {key} --output OUT"
            raise ValueError(f"{lacks.path}: lacks {key}, which {has.path} has; {remedy}")
        remedy = "record one kind of steps"
        if len({kinds[key].replace("float64", "float32") for kinds in (ones, others)}) == 1:
            odd = first if ones[key].startswith("float64") else other
            remedy = f"make it float32: offrl edit repack {odd.path} --output OUT"
        words = f"{key} has steps of {others[key]}, but in {first.path} of {ones[key]}; {remedy}"
        raise ValueError(f"{other.path}: {words}")


def pixels(
    file: SeparateArrays,
    images: Iterable[tuple[str, str]] = (),
    limits: Sequence[float] | None = None,
) -> Edit:
    """Turn images of other forms (``offrl.images``) into ``[T, H, W, C]`` of uint8, or depth maps.

    images: pairs of an observation's key and the names of its forms, joined by commas; by default
        all images that training refuses, in the form that they have by shape, type and range. Those
        of one channel keep their numbers, as depth maps.
    limits: the numbers that become 0 and 255, of colours in other ranges.
    Raises ``ValueError`` if no image is to be turned, or if numbers lie outside of their range.
    """
    if limits and limits[0] >= limits[1]:
        raise ValueError("--range: LOW has to be less than HIGH")
    turns = _named(file, images) if images else _found(file, limits)
    if not turns:
        raise ValueError(f"{file.path}: has no images that would have to be turned")

    def change(file: SeparateArrays, demo: str) -> dict[str, Any]:
        trajectory = file.stored(demo)
        for key in (key for key in turns if key in trajectory):
            rows = trajectory[key].read()
            try:
                trajectory[key] = turns[key](rows)
            except ValueError as error:
                words = f"{error}; name the forms that it has: --images KEY=FORM,FORM"
                raise ValueError(f"{file.path}: {file.root}{demo}/{key} {words}") from None
        return trajectory

    return of_files([file], change=change)


Turn = Callable[[np.ndarray], np.ndarray]


def _named(file: SeparateArrays, images: Iterable[tuple[str, str]]) -> dict[str, Turn]:
    """Return how the named images are turned, by their arrays' keys."""
    there, turns = _steps(file), dict[str, Turn]()
    for key, names in images:
        if f"obs/{key}" not in there:
            known = ", ".join(k.removeprefix("obs/") for k in sorted(there) if k.startswith("obs/"))
            raise ValueError(f"{file.path}: --images: has no obs/{key}; it has {known}")
        if wrong := [name for name in names.split(",") if name not in FORMS]:
            hint = f"{did_you_mean(wrong[0], FORMS)} Known: {', '.join(FORMS)}."
            raise ValueError(f"--images: unknown form of images {shown(wrong[0])}.{hint}")
        turn = partial(turned, forms=cast(list[Form], names.split(",")))
        turns |= dict.fromkeys((f"obs/{key}", f"next_obs/{key}"), turn)
    return turns


def _found(file: SeparateArrays, limits: Sequence[float] | None) -> dict[str, Turn]:
    """Return how the images are turned that training refuses, by their arrays' keys."""
    turns: dict[str, Turn] = {}
    for key, array in file.stored(file.demos()[0]).items():
        if not isinstance(array, StepArray) or not key.startswith(("obs/", "next_obs/")):
            continue
        step, kind = array.shape[1:], array.dtype
        forms = fitting(step, kind)
        is_scaled = kind != np.uint8 and forms[-1:] in (["unit_floats"], ["byte_numbers"])
        if is_scaled and limits:
            turns[key] = partial(scaled, forms=forms[:-1], low=limits[0], high=limits[1])
        elif is_scaled:
            turns[key] = partial(turned, forms=fitting(step, kind, *_limits(file, key)))
        elif forms:
            turns[key] = partial(turned, forms=forms)
    return turns


def _limits(file: SeparateArrays, key: str) -> tuple[float, float]:
    """Find the values of black and white by the smallest and largest numbers of a key."""
    ends = [0.0]
    for demo in file.demos():
        for _, rows in file.stored(demo)[key].pieces():
            ends += [rows.min(initial=0), rows.max(initial=0)]
    if not (min(ends) >= 0 and max(ends) <= 255):
        words = (
            "neither within [0, 1] nor [0, 255]; say what black and white are (--range LOW HIGH)"
        )
        words += ", or name the forms of all images that are to be turned (--images)"
        raise ValueError(f"{file.path}: {key} is between {min(ends):g} and {max(ends):g}, {words}")
    return (0, 1) if max(ends) <= 1 else (0, 255)
