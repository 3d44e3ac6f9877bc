"""How a file of demonstrations came about: an attribute of ``data`` in what offrl writes."""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import h5py

import offrl
from offrl.data.hdf5 import located, open_hdf5

ATTRIBUTE = "provenance"


def provenance(command: str, inputs: Sequence[str | Path]) -> dict[str, Any]:
    """What was run, and on what: of each input its fingerprint, and how it came about itself."""
    sources = [
        {
            "file": Path(path).name,
            "fingerprint": fingerprint([path]),
            ATTRIBUTE: provenance_of(path),
        }
        for path in inputs
    ]
    return {"command": command, "offrl": offrl.__version__, "inputs": sources}


def provenance_of(path: str | Path) -> dict[str, Any] | None:
    """What a file says of how it came about, if it says so."""
    if Path(path).is_dir() or not h5py.is_hdf5(path):
        return None
    with open_hdf5(Path(path)) as file, located(path, f"the attribute {ATTRIBUTE} of data"):
        data = file.get("data")
        text = data.attrs.get(ATTRIBUTE) if isinstance(data, h5py.Group) else None
        return None if text is None else json.loads(text)


def fingerprint(paths: Iterable[str | Path]) -> str:
    """A hash of files, also of those in folders, by size and 64 evenly spaced blocks: as quick for
    50 GB as for 5 MB."""
    digest = hashlib.sha256()
    inside = [sorted(Path(p).rglob("*")) if os.path.isdir(p) else [p] for p in paths]
    for path in filter(os.path.isfile, itertools.chain(*inside)):
        size = os.path.getsize(path)
        digest.update(str(size).encode())
        with open(path, "rb") as file:
            for i in range(64):
                file.seek(size * i // 64)
                digest.update(file.read(65536))
    return digest.hexdigest()[:16]
