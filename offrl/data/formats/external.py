"""Content of an HDF5 file that lies in others: behind links, in virtual arrays or external storage.
HDF5 silently follows them to any file, and reads zeros if the source of an array is missing."""

import math
import os
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path
from typing import Any

import h5py

from offrl.links import inside
from offrl.memory import SMALL, check_memory

DEEPEST = 3  # nested virtual arrays, all of which HDF5 opens


def linked_files(file: h5py.File, seen: set[Path] | None = None) -> dict[str, Path]:
    """Find the links to other files. Returns the existing files by the place of the link.

    Raises ``ValueError`` for files, also behind further links, that may not be read.

    seen: the files whose links were checked already.
    """
    names, found = list[bytes](), dict[str, Path]()
    seen = set() if seen is None else seen

    def see(name: bytes, info: Any) -> None:
        if info.type == h5py.h5l.TYPE_EXTERNAL:
            names.append(name)

    with suppress(RuntimeError, KeyError, OSError):  # reading reports damage
        file.id.links.visit(see, info=True)
    for name in names:
        place, target = name.decode(errors="replace"), file.id.links.get_val(name)[0]
        named = target.decode(errors="surrogateescape")
        other = _file_named(file.filename, named, f"{file.filename}: {place}")
        if other is None:  # reading reports that it is missing
            continue
        found[place] = other
        if other not in seen:
            seen.add(other)
            with suppress(OSError), h5py.File(other, "r") as opened:
                linked_files(opened, seen)
    return found


def in_other_files(places: Iterable[tuple[str, Path]]) -> list[str]:
    """Write a sentence on each other file that a file needs.

    places: the place of the content, and the file that holds it.
    """
    by_file: defaultdict[Path, list[str]] = defaultdict(list)
    for place, other in sorted(places):
        by_file[other].append(place)
    return [
        f"{place}{f' and {len(more)} more' if more else ''} is a link or a virtual array that "
        f"leads to {other}: copy that along with this file, or make one file of both with "
        "offrl edit repack"
        for other, (place, *more) in by_file.items()
    ]


def place_of(dataset: h5py.h5d.DatasetID) -> tuple[str, str]:
    """Name the file that an array is in, and its path there."""
    name = h5py.h5i.get_name(dataset).decode(errors="replace")
    return h5py.h5f.get_name(dataset).decode(), name.strip("/")


def sources(dataset: h5py.h5d.DatasetID, itemsize: int, depth: int = 0) -> set[Path]:
    """Find the other files in which the parts of a virtual array lie; none for other arrays.

    Raises ``ValueError`` for external storage, which may be any file's bytes, for chunks too large
    for memory, and for virtual arrays whose parts are missing, or may not be read.

    itemsize: bytes of each number.
    depth: the number of virtual arrays around it, nested in each other.
    """
    settings, found = dataset.get_create_plist(), set[Path]()
    layout, num_bytes = settings.get_layout(), 0
    if layout == h5py.h5d.CHUNKED:
        num_bytes = math.prod(settings.get_chunk()) * itemsize
        if num_bytes <= SMALL:
            return found
    path, name_there = place_of(dataset)
    place = f"{path}: {name_there}"
    if layout == h5py.h5d.CONTIGUOUS and settings.get_external_count():
        words = "is kept in external storage, in what may be any file; ask for a file that holds it"
        raise ValueError(f"{place} {words}")
    check_memory(num_bytes, f"{place}: a chunk, which is unpacked as a whole,")
    if layout != h5py.h5d.VIRTUAL:
        return found
    if depth > DEEPEST:
        raise ValueError(f"{place} is a virtual array of too many others; ask for what holds it")
    parts = [settings.get_virtual_vspace(i) for i in range(settings.get_virtual_count())]
    for i, part in enumerate(parts):
        name, key = settings.get_virtual_filename(i), settings.get_virtual_dsetname(i)
        rows = settings.get_virtual_srcspace(i)
        other = Path(path) if name == "." else _file_named(path, name, place)
        if other is None or not _is_there(other, key, rows, part, depth + 1):
            raise ValueError(
                f"{place} is a virtual array of {key} in {name}, not all of which is there, so "
                "that HDF5 would read zeros; put that file back beside this one"
            )
        found |= {other} - {Path(path)}
    # Parts may overlap.
    there = reduce(h5py.h5s.SpaceID.combine_select, parts).get_select_npoints() if parts else 0
    if there < dataset.get_space().get_simple_extent_npoints():
        raise ValueError(f"{place} is a virtual array, for parts of which it names no source")
    return found


def _file_named(path: str, name: str, place: str) -> Path | None:
    """Find the file that HDF5 opens for a name in the file at ``path``: the first one in the places
    where HDF5 looks. ``None`` if there is none."""
    folder, own, last = Path(path).parent, Path(path).resolve().parent, Path(name).name
    for tried in (folder / name, Path(name), folder / last, Path(last), own / name):
        if os.path.exists(tried):
            found = inside(tried, folder, own, place=place)
            if h5py.is_hdf5(found):
                return found
    return None


def _is_there(
    path: Path, key: str, space: h5py.h5s.SpaceID, part: h5py.h5s.SpaceID, depth: int
) -> bool:
    """Say whether a file has the array ``key``, and its selected ``part`` was written."""
    _check_links(path, path.stat().st_mtime_ns)
    with h5py.File(path, "r") as file:
        source = file.get(key)
        if not isinstance(source, h5py.Dataset):
            return False
        sources(source.id, source.dtype.itemsize, depth)
        if space.get_select_type() == h5py.h5s.SEL_ALL:  # a selection of unknown size
            fits = source.size == part.get_select_npoints()
        else:
            shape, ends = source.shape, space.get_select_bounds()[1]
            fits = len(shape) == len(ends) and all(e < n for e, n in zip(ends, shape, strict=True))
        return fits and is_written(source.id)


@cache
def _check_links(path: Path, changed: int) -> None:
    """Raise as ``linked_files`` does; check each state of a file once."""
    with h5py.File(path, "r") as file:
        linked_files(file)


def is_written(dataset: h5py.h5d.DatasetID) -> bool:
    """Say whether all of an array was written; unwritten parts would read as zeros."""
    return dataset.get_space_status() == h5py.h5d.SPACE_STATUS_ALLOCATED or 0 in dataset.shape
