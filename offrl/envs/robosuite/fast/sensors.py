"""The choice of robosuite's sensors to compute: those asked for and those that these read."""

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from robosuite.utils.observables import NO_CORRUPTION, NO_DELAY, NO_FILTER

OBJECT = "object"  # the observation, and the kind of the sensors that it is put together from
IMAGE = "image"


class Sensors:
    """The sensors of an environment. Values of those that are computed have the bits that they have
    among all: a sensor reads others through a cache only, and what it reads there is found out by
    asking it. Where a sensor is corrupted, filtered or delayed on purpose, all are computed."""

    def __init__(self, env: Any, may_leave_out: bool):
        self.env, self._may_leave_out = env, may_leave_out
        self.asked: tuple[str, ...] = ()  # the observations of the episodes to come; none: all
        self.alone: tuple[str, ...] = ()  # of this one
        self._left_out: list[Any] = []

    def ask(self, keys: Sequence[str] | None) -> None:
        """Note the observations that the episodes to come need; ``None`` or none: all."""
        self.asked = tuple(keys or ()) if self._may_leave_out else ()

    def before_reset(self) -> None:
        """Let the reset compute all sensors but those of cameras: it may change which sensor reads
        which, but none reads what cameras see."""
        for sensor in self._left_out:
            sensor._enabled = True
        self._left_out = []
        self.alone = self.asked if undisturbed(self.env) else ()
        if self.alone:
            seen = {*self.alone, *(key.replace("_depth", "_image") for key in self.alone)}
            self._leave_out(s for s in self._enabled(IMAGE) if s.name not in seen)

    def look_again(self) -> None:
        """Compute the sensors once more. Some, as that of where a can is from the hand, read the
        last values of others: after a reset there are none, and after a jump those of another
        state."""
        for sensor in self._enabled():
            if sensor.modality != IMAGE:
                sensor.update(timestep=0.0, obs_cache=self.env._obs_cache, force=True)

    def after_reset(self) -> None:
        if self.alone:
            asked = set(self.alone)
            if OBJECT in asked:
                asked |= {sensor.name for sensor in self._enabled(OBJECT)}
            needed = self._with_what_they_read(asked)
            enabled = self._enabled()
            self._leave_out(s for s in enabled if s.name not in needed and s.modality != IMAGE)

    def _enabled(self, modality: str | None = None) -> list[Any]:
        sensors = self.env._observables.values()
        return [s for s in sensors if s._enabled and modality in (None, s.modality)]

    def _leave_out(self, sensors: Iterable[Any]) -> None:
        for sensor in sensors:
            sensor._enabled = False
            self._left_out.append(sensor)

    def _with_what_they_read(self, names: set[str]) -> set[str]:
        """Add to names of sensors those that these read, and so on."""
        read: dict[str, set[str]] = {}
        writers: dict[str, set[str]] = {}
        for sensor in self._enabled():
            if sensor.modality != IMAGE:
                cache = _Watched(self.env._obs_cache)
                sensor._sensor(cache)
                read[sensor.name] = cache.read
                for key in cache.written:
                    writers.setdefault(key, set()).add(sensor.name)
        needed, new = set(names), set(names)
        while new:
            keys = {key for name in new for key in read.get(name, ())}
            new = keys.union(*(writers.get(key, ()) for key in keys)) - needed
            needed |= new
        return needed


def undisturbed(env: Any) -> bool:
    """Say whether all sensors say what they see, at once."""
    plain = NO_CORRUPTION, NO_FILTER, NO_DELAY
    return all((s._corrupter, s._filter, s._delayer) == plain for s in env._observables.values())


class _Watched(MutableMapping):
    """A copy of a cache that notes what is looked up and written."""

    def __init__(self, cache: MutableMapping[str, Any]):
        self._cache = dict(cache)
        self.read: set[str] = set()
        self.written: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._cache[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.add(key)
        self._cache[key] = value

    def __delitem__(self, key: str) -> None:
        del self._cache[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cache)

    def __len__(self) -> int:
        return len(self._cache)
