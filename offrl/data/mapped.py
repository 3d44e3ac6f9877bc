"""Rows in files of a folder (``train.cache_dir``), decoded once, which trainings map into memory.

A file's name says of which key it is and ends with a digest of the data, so that changed data gets
a file of its own. The system keeps in memory what is used, and drops it when memory is short.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from offrl.outputs import (
    check_space,
    one_at_a_time,
    slug,
    take_lock,
    whole_file,
    writable_folder,
)

log = logging.getLogger(__name__)

NAME = re.compile(r"\.[\w.+=-]+-[0-9a-f]{16}")  # of a lock


def map_rows(
    folder: str | Path,
    key: str,
    identity: Any,
    shape: tuple[int, ...],
    dtype: np.dtype,
    parts: Callable[[], Iterator[np.ndarray]],
) -> Tensor:
    """Map the rows ``shape`` ([N, ...]) of a key into memory, and write them before if they are not
    there. Raises ``OSError`` if they cannot be written.

    Another training that writes the same rows is waited for.

    identity: what the rows follow from, which JSON can hold.
    parts: yields the rows.
    """
    folder = writable_folder(Path(folder).expanduser())
    described = json.dumps([identity, key, shape, str(dtype)])
    name = f"{slug(key.replace('/', '.'))}-{sha256(described.encode()).hexdigest()[:16]}"
    path, num_bytes = folder / f"{name}.rows", math.prod(shape) * dtype.itemsize
    with one_at_a_time(folder / f".{name}.lock", f"{path}: another training writes it: waiting"):
        if not _is_own(path) or path.stat().st_size != num_bytes:
            _write(path, num_bytes, parts())
        # Private, so that a program that changes rows changes no file.
        return torch.from_numpy(np.memmap(path, dtype, "c", shape=shape))


def _write(path: Path, num_bytes: int, parts: Iterator[np.ndarray]) -> None:
    from tqdm import tqdm

    check_space(path, num_bytes)
    with (
        whole_file(path, num_bytes) as partial,
        open(partial, "wb") as file,
        tqdm(desc=path.name, total=num_bytes, unit="B", unit_scale=True, disable=None) as bar,
    ):
        for part in parts:
            file.write(np.ascontiguousarray(part).data)
            bar.update(part.nbytes)


def mapped_files(folder: Path) -> dict[Path, list[Path]]:
    """List the files that trainings left in a folder, finished or not, by their locks."""
    found = {}
    for lock in sorted(filter(_is_own, folder.glob(".*.lock"))):
        if NAME.fullmatch(lock.stem):
            name = lock.stem.removeprefix(".")
            files = *folder.glob(f"{name}.rows"), *folder.glob(f".{name}.*.partial.rows")
            found[lock] = [*filter(_is_own, files)]
    return found


def _is_own(path: Path) -> bool:
    """Say whether there is a file in this very folder, not a link to one."""
    return path.is_file() and not path.is_symlink()


def clear(folder: Path) -> list[Path]:
    """Remove these files, and return them. Trainings that map them go on. What is being written
    stays."""
    removed = []
    for lock, files in mapped_files(folder).items():
        with open(lock) as opened, suppress(ValueError):
            take_lock(opened.fileno(), lock, "it is being written")
            for path in (*files, lock):
                path.unlink(missing_ok=True)
            removed += files
    return removed
