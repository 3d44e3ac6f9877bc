"""New files made of the demonstrations of others; unchanged arrays are copied as stored, unread."""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.files import open_demos
from offrl.data.separate import SeparateArrays
from offrl.data.writer import DemoWriter, check_filter_key

log = logging.getLogger(__name__)

Demo = tuple[SeparateArrays, str]  # a demonstration in a file
SOURCE = "source"  # attribute of a demonstration: which one it was in earlier files
ACTION_MAP = "action_map"  # attribute of data: how stored actions were scaled


@dataclass
class Edit:
    """The content of a new file.

    demos: the demonstrations, in their new order.
    env_args: of the environment that fits the new demonstrations.
    masks: the demonstrations under each filter key; those not in ``demos`` are left out.
    attributes: of ``data``.
    change: returns the content to write for a demonstration; by default all of it.
    options: of ``DemoWriter``.
    computed: yields what ``change`` needs for each demonstration, in order; closed at the end.
    """

    demos: Sequence[Demo]
    env_args: Mapping[str, Any] | None
    masks: dict[str, list[Demo]]
    attributes: dict[str, Any]
    change: Callable[[SeparateArrays, str], dict[str, Any]] = lambda file, demo: file.stored(demo)
    options: Mapping[str, Any] = field(default_factory=dict)
    computed: Generator[np.ndarray, None, None] | None = None

    def write(
        self,
        path: str | Path,
        provenance: Mapping[str, Any],
        advance: Callable[[], object] = lambda: None,
    ) -> int:
        """Write the file; return its number of steps. ``advance`` is called after each episode."""
        files = list(dict.fromkeys(file for file, _ in self.demos))
        labels, there = labelled(files), {(file, demo) for file in files for demo in file.demos()}
        for key, members in self.masks.items():
            check_filter_key(path, key)
            for file, demo in members:
                if (file, demo) not in there:
                    raise ValueError(
                        f"{file.path}: mask/{key} names {demo}, which is not there; correct it, or "
                        f"drop it: offrl edit rename {file.path} --drop mask/{key} --output OUT"
                    )
        options = {"provenance": provenance, "durable": False, **self.options}
        computing = nullcontext() if self.computed is None else closing(self.computed)
        with computing, DemoWriter(path, self.env_args, **options) as writer:
            writer.annotate(**self.attributes)
            names, num_steps = {}, 0
            for file, demo in self.demos:
                trajectory = self.change(file, demo)
                notes = notes_of(file, demo, labels[file])
                # Attributes that the edit changed; trajectories leave out array attributes.
                notes |= {k: v for k, v in trajectory.items() if k in notes and k != SOURCE}
                names[file, demo] = writer.write(trajectory, **notes)
                num_steps += len(trajectory["actions"])
                advance()
            for key, members in self.masks.items():
                left = [names[member] for member in dict.fromkeys(members) if member in names]
                if left:
                    writer.write_mask(key, left)
                else:
                    log.warning(f"{path}: mask/{key} is left out: none of its demonstrations are")
            return num_steps


def notes_of(file: SeparateArrays, demo: str, label: str) -> dict[str, Any]:
    """Return the attributes of a demonstration, with its ``SOURCE`` in the file ``label``."""
    notes = file.attributes(demo)
    before = f" < {notes[SOURCE]}" if SOURCE in notes else ""
    return notes | {SOURCE: f"{label}/{demo}{before}"}


def of_files(
    files: Sequence[SeparateArrays], demos: Iterable[Demo] | None = None, **fields: Any
) -> Edit:
    """Make an edit that copies all demonstrations of files, or ``demos``, with their attributes and
    filter keys. ``fields`` replaces fields of the edit."""
    masks: dict[str, list[Demo]] = {}
    for file in files:
        for key in file.filter_keys():
            masks.setdefault(key, []).extend((file, demo) for demo in file.mask(key))
        if others := file.unread():
            log.warning(f"{file.path}: {', '.join(others)} are neither data nor mask: left behind")
    first, *rest = [file.attributes() for file in files]
    shared = {k: v for k, v in first.items() if all(_same(v, other.get(k)) for other in rest)}
    demos = [(file, demo) for file in files for demo in file.demos()] if demos is None else demos
    return replace(Edit(list(demos), files[0].env_args, masks, shared), **fields)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and np.array_equal(one, other)


def open_file(path: Path) -> SeparateArrays:
    """Open data whose arrays are read one by one; ``ValueError`` for other layouts."""
    file = open_demos(path)
    if not isinstance(file, SeparateArrays):
        file.close()
        remedy = f"convert it first: offrl convert {path} OUT --to robomimic"
        raise ValueError(f"{path}: is in {file.layout}'s layout, which edits do not take; {remedy}")
    return file


def check_range(file: SeparateArrays) -> None:
    """Raise ``ValueError`` for actions that no environment takes as they are."""
    if ACTION_MAP in file.attributes():
        remedy = f"undo that first: offrl edit actions {file.path} --undo-range --output OUT"
        raise ValueError(f"{file.path}: its actions were brought into another range; {remedy}")


def labelled(files: Sequence[SeparateArrays]) -> dict[SeparateArrays, str]:
    """Label each file by its name, or by its path if several have the same name."""
    names = [file.path.name for file in files]
    return {f: f.path.name if names.count(f.path.name) == 1 else str(f.path) for f in files}
