"""What sections of configs are made of."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from offrl.config.content import check_content, shown


class Section(BaseModel):
    """A part of a config: attribute access, ``in``, iteration over key names."""

    # Neither NaN nor infinity: JSON has none, so that they could not be read again.
    model_config = ConfigDict(
        extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False
    )

    def __contains__(self, key: str) -> bool:
        return key in type(self).model_fields

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def keys(self) -> Iterator[str]:
        return iter(type(self).model_fields)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump()

    def dump(self) -> str:
        """The section as JSON text."""
        return json.dumps(self.to_dict(), indent=4)


class Map(dict):
    """A free-form part of a config (``core_kwargs``, say): any keys, readable as attributes."""

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"no key {key!r}; keys: {sorted(self)}") from None


def _as_map(value: Any) -> Any:
    if isinstance(value, dict):
        return Map({k: _as_map(v) for k, v in value.items()})
    return str(value) if isinstance(value, Path) else value


def _checked_map(value: dict[str, Any]) -> Any:
    check_content(value)
    return _as_map(value)


FreeMap = Annotated[dict[str, Any], AfterValidator(_checked_map)]
KeyLists = Annotated[dict[str, list[str]], AfterValidator(_as_map)]
Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1, le=100_000)]  # of a window: what is longer is all padding
Share = Annotated[float, Field(ge=0, le=1)]


def only(value: Any, otherwise: str) -> AfterValidator:
    """What a key of robomimic's must say that can say one thing alone here."""

    def check(given: Any) -> Any:
        if given != value:
            raise ValueError(f"only {value!r} is known here, not {shown(given)}; {otherwise}")
        return given

    return AfterValidator(check)


def _ordered(bounds: list[float]) -> list[float]:
    if bounds[0] >= bounds[1]:
        raise ValueError(f"{bounds}: the first must be less than the second")
    return bounds


Bounds = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_ordered)]
