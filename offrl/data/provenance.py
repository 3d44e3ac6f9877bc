"""The origin of a file of demonstrations, an attribute of ``data`` in files that offrl writes."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py

import offrl
from offrl.data.formats.hdf5 import attributes_of_data, located, open_unchecked

ATTRIBUTE = "provenance"


def provenance(command: str, inputs: Sequence[str | Path]) -> dict[str, Any]:
    """Record the command that was run and the fingerprint of each input; ``history`` holds, by
    fingerprint, the origins of the inputs and of their own inputs."""
    sources, history = list[dict[str, str]](), dict[str, Any]()
    for path in inputs:
        mark, before = fingerprint([path]), provenance_of(path)
        sources.append({"file": Path(path).name, "fingerprint": mark})
        if before is not None:
            history |= {**before.pop("history", {}), mark: before}
    record = {"command": command, "offrl": offrl.__version__, "inputs": sources}
    return record | ({"history": history} if history else {})


def provenance_of(path: str | Path) -> dict[str, Any] | None:
    """Read the origin that a file states, if it states one."""
    if Path(path).is_dir() or not h5py.is_hdf5(path):
        return None
    with open_unchecked(Path(path)) as file, located(path, f"the attribute {ATTRIBUTE} of data"):
        text = attributes_of_data(file).get(ATTRIBUTE)
    if text is None:
        return None
    try:
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        said = None
    is_ours = isinstance(said, dict) and {"command", "offrl", "inputs"} <= said.keys()
    return said if is_ours else {"said": str(text)}  # written by another program


def fingerprint(paths: Iterable[str | Path]) -> str:
    """Hash files, also those in folders, by size and 64 blocks, in constant time per file."""
    digest = hashlib.sha256()
    for path in _files(paths):
        size = os.path.getsize(path)
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            for i in range(64):
                file.seek(size * i // 64)
                digest.update(file.read(65536))
    return digest.hexdigest()[:16]


def last_change(paths: Iterable[str | Path]) -> int:
    """Return the latest time at which files, also those in folders, were changed, in nanoseconds
    since 1970."""
    return max(os.stat(path).st_mtime_ns for path in _files(paths))


def _files(paths: Iterable[str | Path]) -> Iterator[str | Path]:
    inside = [sorted(Path(p).rglob("*")) if os.path.isdir(p) else [p] for p in paths]
    return filter(os.path.isfile, itertools.chain(*inside))
