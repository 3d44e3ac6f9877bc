"""New files made of demonstrations of others, one at a time: what an edit does not change is copied
as it is stored, neither unpacked nor read."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.formats.files import open_demos
from offrl.data.formats.hdf5 import DemoFile
from offrl.data.writer import DemoWriter, check_filter_key

log = logging.getLogger(__name__)

Source = tuple[DemoFile, str]  # a demonstration in a file
Change = Callable[[DemoFile, str], Mapping[str, Any]]
SOURCE = "source"  # the attribute of a demonstration that says which one it was, and before that


@dataclass
class Edit:
    """What a file is made of.

    demos: the demonstrations, in their new order.
    change: what of each is written; all of it, unless an edit says otherwise.
    env_args: of the environment in which the new demonstrations are as they are.
    masks: filter keys, and what is under each; what is not among ``demos`` is left out.
    attributes: of ``data``.
    options: of ``DemoWriter``.
    """

    demos: Sequence[Source]
    env_args: Mapping[str, Any] | None
    masks: Mapping[str, Sequence[Source]]
    attributes: Mapping[str, Any]
    change: Change = DemoFile.stored
    options: Mapping[str, Any] = field(default_factory=dict)

    def write(
        self,
        path: str | Path,
        provenance: Mapping[str, Any],
        advance: Callable[[], object] = lambda: None,
    ) -> int:
        """Write it; the number of steps. ``advance`` is told of each demonstration."""
        files = list(dict.fromkeys(file for file, _ in self.demos))
        labels, there = labelled(files), {(file, demo) for file in files for demo in file.demos()}
        for key, members in self.masks.items():
            check_filter_key(path, key)
            _check_mask(key, members, there)
        options = {"provenance": provenance, "durable": False, **self.options}
        with DemoWriter(path, self.env_args, **options) as writer:
            writer.annotate(**self.attributes)
            names, num_steps = {}, 0
            for file, demo in self.demos:
                trajectory = self.change(file, demo)
                notes = notes_of(file, demo, labels[file])
                # Attributes that the edit changed; arrays among them are in no trajectory.
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


def notes_of(file: DemoFile, demo: str, label: str) -> dict[str, Any]:
    """A demonstration's attributes, and which one it was in a file that is called so."""
    notes = file.attributes(demo)
    before = f" < {notes[SOURCE]}" if SOURCE in notes else ""
    return notes | {SOURCE: f"{label}/{demo}{before}"}


def of_files(files: Sequence[DemoFile], demos: Iterable[Source] | None = None) -> Edit:
    """All demonstrations of the files, or some, as they are, with all that is said of them."""
    everything = [(file, demo) for file in files for demo in file.demos()]
    masks: dict[str, list[Source]] = {}
    for file in files:
        for key in file.filter_keys():
            masks.setdefault(key, []).extend((file, demo) for demo in file.mask(key))
        if others := file.unread():
            log.warning(f"{file.path}: {', '.join(others)} are neither data nor mask: left behind")
    first, *rest = [file.attributes() for file in files]
    held = {k: v for k, v in first.items() if all(same(v, other.get(k)) for other in rest)}
    return Edit(
        everything if demos is None else list(demos), files[0].env_args, masks, attributes=held
    )


def open_file(path: Path) -> DemoFile:
    """An open file in robomimic's layout; ``ValueError`` for others."""
    file = open_demos(path)
    if not isinstance(file, DemoFile):
        file.close()
        raise ValueError(
            f"{path}: is not in robomimic's layout, which edits take; convert it first: "
            f"offrl convert {path} OUT --to robomimic"
        )
    return file


def _check_mask(key: str, members: Sequence[Source], there: set[Source]) -> None:
    for file, demo in members:
        if (file, demo) not in there:
            raise ValueError(
                f"{file.path}: mask/{key} names {demo}, which is not there; correct it, or leave "
                f"it out: offrl edit rename {file.path} --drop mask/{key} --output OUT"
            )


def labelled(files: Sequence[DemoFile]) -> dict[DemoFile, str]:
    """A name for each file: its own, or where several have that its whole path."""
    names = [file.path.name for file in files]
    return {f: f.path.name if names.count(f.path.name) == 1 else str(f.path) for f in files}


def same(one: Any, other: Any) -> bool:
    """Say whether two attributes hold the same: numbers, text, or arrays."""
    return type(one) is type(other) and np.array_equal(one, other)
