"""Edits that keep some demonstrations of a file: by length, return, success, attributes, names, a
filter key, or at random."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile
from offrl.edits.edit import Edit, of_files
from offrl.edits.expressions import Condition


class Facts(Mapping[str, Any]):
    """The names that conditions may use of a demonstration: ``length``, ``return``, ``success`` and
    its attributes that are numbers or text."""

    def __init__(self, file: DemoFile, demo: str):
        self._file, self._demo = file, demo
        self._attributes = {
            key: value.decode(errors="replace") if isinstance(value, bytes) else value
            for key, value in file.attributes(demo).items()
            if not isinstance(value, np.ndarray)
        }
        computed: dict[str, Callable[[], Any]] = {
            "length": lambda: int(file.lengths([demo])[0]),
            "return": lambda: float(file.steps(demo, "rewards").sum(dtype=np.float64)),
            "success": self._success,
        }
        self._values = {**computed, **self._attributes, **computed}

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        value = value() if callable(value) else value
        return value.item() if isinstance(value, np.generic) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _success(self) -> bool:
        found = self._file.success(self._attributes | _signs(self._file, self._demo))
        return found if found is not None else bool(success_steps(self._file, self._demo).any())


def _signs(file: DemoFile, demo: str) -> dict[str, Any]:
    """Read the arrays of a demonstration that tell of success."""
    return {k: file.steps(demo, k) for k in ("rewards", "dones") if file.has(demo, k)}


def success_steps(file: DemoFile, demo: str) -> np.ndarray:
    """Say whether the task was done at each step ``[T]``; ``ValueError`` if nothing tells."""
    steps = file.success_steps(_signs(file, demo))
    if steps is None:
        raise ValueError(
            f"{file.path}: data/{demo} does not say where it succeeded: its rewards are not 0 "
            "before success and 1 at success, and its dones may be failures; give it the attribute "
            "success"
        )
    return steps


def subset(
    file: DemoFile,
    filter_key: str | None = None,
    demos: Sequence[str] | None = None,
    n: int | None = None,
    seed: int | None = None,
) -> Edit:
    """Keep some demonstrations, in their order: of those under a filter key those with the names
    ``demos``, and of these ``n``: the first, or with a seed random ones."""
    if not (filter_key or demos or n):
        raise ValueError("offrl edit subset: give --n, --filter-key, or --demos")
    chosen = file.demos(filter_key)
    if demos is not None:
        if missing := [name for name in demos if name not in chosen]:
            where = "data" if filter_key is None else f"mask/{filter_key}"
            raise ValueError(
                f"{file.path}: {where} has no {missing[0]}; it has {len(chosen)} demonstrations, "
                f"{chosen[0]} to {chosen[-1]}"
            )
        chosen = [demo for demo in chosen if demo in demos]
    if n is not None and n > len(chosen):
        raise ValueError(
            f"{file.path}: {n} demonstrations are asked for, but there are {len(chosen)}; lower --n"
        )
    order = np.arange(len(chosen))
    if seed is not None:
        # Another draw than that of a split by the same seed, which would be of the same ones.
        order = np.random.default_rng([seed, 1]).permutation(len(chosen))
    return of_files([file], [(file, chosen[i]) for i in sorted(order[:n])])


def keep(
    file: DemoFile,
    min_length: int | None = None,
    max_length: int | None = None,
    min_return: float | None = None,
    max_return: float | None = None,
    success: bool = False,
    where: str | None = None,
) -> Edit:
    """Keep the demonstrations that fulfil all conditions that are given; ``where`` is the text of a
    ``Condition``. ``ValueError`` if none does."""
    limits = {
        "length >= {}": min_length,
        "length <= {}": max_length,
        "return >= {!r}": min_return,
        "return <= {!r}": max_return,
        "success": success or None,
        "{}": where,
    }
    texts = [text.format(value) for text, value in limits.items() if value is not None]
    if not texts:
        raise ValueError("offrl edit filter: no condition is given; see offrl edit filter --help")
    conditions, kept = [Condition(text) for text in texts], []
    for demo in file.demos():
        facts = Facts(file, demo)
        try:
            if all(condition(facts) for condition in conditions):
                kept.append((file, demo))
        except ValueError as error:
            if str(error).startswith(f"{file.path}: "):
                raise
            raise ValueError(f"{file.path}: data/{demo}: {error}") from None
    if not kept:
        raise ValueError(f"{file.path}: no demonstration fulfils {' and '.join(texts)}")
    return of_files([file], kept)
