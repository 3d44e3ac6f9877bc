"""How a file of demonstrations came about: an attribute of ``data`` in what offrl writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py

import offrl
from offrl.data.hdf5 import fingerprint, located, open_hdf5

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
