"""Selects demonstrations of a file: by length, return, success, attributes, at random."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from offrl.data.formats.hdf5 import DemoFile
from offrl.edits.expressions import Condition


class Facts(Mapping[str, Any]):
    """What conditions can ask of a demonstration: ``length``, ``return``, ``success`` and its
    attributes that are numbers or text."""

    def __init__(self, file: DemoFile, demo: str):
        self._file, self._demo = file, demo
        self._computed = {"length": self._length, "return": self._return, "success": self._success}
        self._attributes = {
            key: value.decode(errors="replace") if isinstance(value, bytes) else value
            for key, value in file.attributes(demo).items()
            if not isinstance(value, np.ndarray)
        }

    def __getitem__(self, name: str) -> Any:
        value = self._computed[name]() if name in self._computed else self._attributes[name]
        return value.item() if isinstance(value, np.generic) else value

    def __iter__(self) -> Iterator[str]:
        yield from {**self._computed, **self._attributes}

    def __len__(self) -> int:
        return len({**self._computed, **self._attributes})

    def _length(self) -> int:
        return int(self._file.lengths([self._demo])[0])

    def _return(self) -> float:
        return float(self._file.steps(self._demo, "rewards").sum(dtype=np.float64))

    def _success(self) -> bool:
        found = self._file.success(self._attributes | told(self._file, self._demo))
        return found if found is not None else bool(success_steps(self._file, self._demo).any())


def told(file: DemoFile, demo: str) -> dict[str, Any]:
    """Give what of a demonstration tells of success."""
    return {k: file.steps(demo, k) for k in ("rewards", "dones") if file.has(demo, k)}


def success_steps(file: DemoFile, demo: str) -> np.ndarray:
    """Say whether the task was done at each step ``[T]``; ``ValueError`` if nothing tells."""
    steps = file.success_steps(told(file, demo))
    if steps is None:
        raise ValueError(
            f"{file.path}: data/{demo} does not say where it succeeded: its rewards are not 0 "
            "before success and 1 at success, and its dones may be failures; give it the attribute "
            "success"
        )
    return steps


def choose(
    file: DemoFile,
    filter_key: str | None = None,
    names: Sequence[str] | None = None,
    n: int | None = None,
    seed: int | None = None,
) -> list[str]:
    """Demonstrations in their order: of those under a filter key, those named, ``n`` of these:
    the first, or with a seed random ones."""
    demos = file.demos(filter_key)
    if names is not None:
        if missing := [name for name in names if name not in demos]:
            where = "data" if filter_key is None else f"mask/{filter_key}"
            raise ValueError(
                f"{file.path}: {where} has no {missing[0]}; it has {len(demos)} demonstrations, "
                f"{demos[0]} to {demos[-1]}"
            )
        demos = [demo for demo in demos if demo in names]
    if n is not None and n > len(demos):
        raise ValueError(
            f"{file.path}: {n} demonstrations are asked for, but there are {len(demos)}; lower --n"
        )
    if seed is None:
        return demos[:n]
    # Another draw than that of a split by the same seed, which would be of the same ones.
    drawn = np.random.default_rng([seed, 1]).permutation(len(demos))[:n]
    return [demos[i] for i in sorted(drawn)]


def that_fulfil(file: DemoFile, conditions: Sequence[Condition]) -> list[str]:
    """The demonstrations for which all conditions hold; ``ValueError`` if there are none."""
    chosen = []
    for demo in file.demos():
        facts = Facts(file, demo)
        try:
            if all(condition(facts) for condition in conditions):
                chosen.append(demo)
        except ValueError as error:
            if str(error).startswith(f"{file.path}: "):
                raise
            raise ValueError(f"{file.path}: data/{demo}: {error}") from None
    if not chosen:
        texts = " and ".join(condition.text for condition in conditions)
        raise ValueError(f"{file.path}: no demonstration fulfils {texts}")
    return chosen
