"""Several files of demonstrations, strung together."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offrl.data.files import open_demos

log = logging.getLogger(__name__)


@dataclass
class Source:
    """One of the files: its demonstrations, and what environment they were recorded in."""

    path: str
    demos: list[str]
    lengths: np.ndarray
    env_args: dict[str, Any] | None
    num_windows: int = 0


class OpenSources:
    """The files, open, and what was chosen of each, ``sources``. A context manager.

    filters, limits, shares: see ``SequenceDataset``, one for all files or one for each.
    key: the one whose length is that of a demonstration.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        filters: Any,
        limits: Any,
        shares: Any,
        key: str,
        swmr: bool,
    ):
        self._stack = ExitStack()
        self._files = []
        self.sources: list[Source] = []
        choices = (_one_for_each(choice, paths) for choice in (filters, limits, shares))
        with self._stack:  # closed if one of them cannot be opened
            for path, filter_key, limit, share in zip(paths, *choices, strict=True):
                file = self._stack.enter_context(open_demos(path, swmr))
                demos = file.demos(filter_key, limit)
                demos = demos if share is None else file.best(demos, share)
                lengths = file.lengths(demos, key)
                if lengths.min() < 1:
                    raise ValueError(
                        f"{path}: {demos[lengths.argmin()]} has no steps; leave it out with a "
                        "filter key, or delete it"
                    )
                self._files.append(file)
                self.sources.append(Source(str(file.path), demos, lengths, file.env_args))
            self._stack = self._stack.pop_all()

    def __enter__(self) -> "OpenSources":
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def all_have(self, key: str) -> bool:
        return all(file.has(source.demos[0], key) for file, source in self._pairs())

    def shape(self, key: str) -> tuple[int, ...]:
        """Shape of one step; ``ValueError`` if the files do not agree on it."""
        shapes = [file.shape(source.demos[0], key) for file, source in self._pairs()]
        for source, shape in zip(self.sources, shapes, strict=True):
            if shape != shapes[0]:
                raise ValueError(
                    f"{key} has shape {list(shapes[0])} in {self.sources[0].path}, but "
                    f"{list(shape)} in {source.path}; train on files that agree"
                )
        return shapes[0]

    def hold_integers(self, key: str) -> bool:
        return any(file.holds_integers(source.demos[0], key) for file, source in self._pairs())

    def check(self, key: str) -> None:
        """As ``Demos.check``."""
        for file, source in self._pairs():
            file.check(source.demos, key, source.lengths)

    def read(self, key: str) -> np.ndarray:
        """``[sum(lengths), ...]`` of all files."""
        parts = [file.read(source.demos, key, source.lengths) for file, source in self._pairs()]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def read_or_zeros(self, key: str) -> np.ndarray:
        """The same, zero for files that lack it; zeros ``[sum(lengths), 1]`` if all do."""
        have = [file.has(source.demos[0], key) for file, source in self._pairs()]
        if all(have):
            return self.read(key)
        if not any(have):
            return np.zeros((sum(int(s.lengths.sum()) for s in self.sources), 1), np.float32)
        file, source = next(pair for pair, has in zip(self._pairs(), have, strict=True) if has)
        parts, shape = [], file.shape(source.demos[0], key)
        for (file, source), has in zip(self._pairs(), have, strict=True):
            if has:
                parts.append(file.read(source.demos, key, source.lengths))
            else:
                log.warning("%s has no %s: taken as zero", source.path, key)
                parts.append(np.zeros((int(source.lengths.sum()), *shape), np.float32))
        return np.concatenate(parts)

    def _pairs(self) -> Any:
        return zip(self._files, self.sources, strict=True)


def _one_for_each(value: Any, paths: Sequence[Any]) -> list[Any]:
    if isinstance(value, (list, tuple)):
        if len(value) != len(paths):
            raise ValueError(f"{len(value)} filter keys or demo limits for {len(paths)} files")
        return list(value)
    return [value] * len(paths)
