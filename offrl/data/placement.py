"""The place of a training's data: in memory, in files, or in files with a part in memory."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from offrl import parallel
from offrl.memory import free_memory, in_bytes

log = logging.getLogger(__name__)

CacheMode = Literal["auto", "all", "low_dim"]
#: The share of free memory that data may take, where the config says no number: networks, batches
#: and simulators need the rest.
SHARE = 0.5
#: The bytes that each process that reads takes itself, with the batches that wait.
READER = 125 * 10**6
SHOWN = 3  # keys that are named in an error


@dataclass(frozen=True)
class Placement:
    """The place of each observation key.

    in_memory: keys that are read as a whole before the training.
    cached: the bytes of memory for rows of each of the other keys, which are read when needed.
    """

    in_memory: frozenset[str]
    cached: Mapping[str, int]


def place_keys(
    name: str,
    sizes: Mapping[str, int],
    vectors: Mapping[str, int],
    others: Mapping[str, int],
    mode: CacheMode | None,
    cache_gb: float | None = None,
    num_readers: int = 0,
) -> Placement:
    """Choose the place of each key, by ``train.hdf5_cache_mode``.

    Raises ``ValueError`` if what is in memory as a whole does not fit there.

    name: the data, for messages.
    sizes: the bytes that each observation takes in memory.
    vectors: those of the ones that are vectors.
    others: those of other keys, which are always in memory.
    cache_gb: ``train.cache_gb``.
    num_readers: the processes that will read, which take memory of it, too.
    """
    if mode not in (None, *get_args(CacheMode)):
        allowed = ", ".join(get_args(CacheMode))
        raise ValueError(f"hdf5_cache_mode: {mode!r}; allowed: null, {allowed}")
    free = free_memory() / parallel.num_local()
    room = int(min(free * SHARE, 2**62) if cache_gb is None else cache_gb * 1e9)
    if mode == "auto" and room > free < sum((*sizes.values(), *others.values())):
        room = int(free * SHARE)
        words = f"{in_bytes(free)} are free, of which half is taken for data"
        log.warning(f"train.cache_gb: {cache_gb:g} GB, but {words}")
    room -= sum(others.values())
    chosen = {"all": sizes, "low_dim": vectors, None: {}, "auto": sizes}[mode]
    rest = 0
    if mode == "auto" and sum(sizes.values()) > room:
        chosen = {}
        for key, size in sorted(vectors.items(), key=lambda item: item[1]):
            if sum(chosen.values()) + size <= room:
                chosen[key] = size
        rest = max(0, room - sum(chosen.values()) - num_readers * READER)
        always = sum(others.values())
        total, kept = sum(sizes.values()) + always, sum(chosen.values()) + rest + always
        log.info(
            f"{name}: takes {in_bytes(total)} in memory, of which {in_bytes(kept)} are kept there "
            "(train.cache_gb); the rest is read from files"
        )
    _check_fits(name, {**chosen, **others}, free)
    streamed = {key: size for key, size in sizes.items() if key not in chosen}
    shares = {key: rest * size // sum(streamed.values()) for key, size in streamed.items()}
    return Placement(frozenset(chosen), shares)


def _check_fits(name: str, sizes: Mapping[str, int], free: float) -> None:
    """Raise ``ValueError`` if data of these sizes is more than the free memory."""
    total = sum(sizes.values())
    if total <= free:
        return
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    named = ", ".join(f"{key} {in_bytes(size)}" for key, size in largest[:SHOWN])
    raise ValueError(
        f"{name}: takes {in_bytes(total)} in memory ({named}{', ...' * (len(largest) > SHOWN)}), "
        f'but {in_bytes(free)} are free; set train.hdf5_cache_mode to "auto", which keeps what '
        "fits and reads the rest from the files, or train.cache_dir to a folder on a fast disk, "
        "or train on fewer demonstrations (train.data.demo_limit)"
    )
