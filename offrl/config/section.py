"""The base of sections of configs, and types of keys."""

import ast
import inspect
import itertools
import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import core_schema

from offrl.config.content import check_content
from offrl.registry import shown


class Section(BaseModel):
    """A part of a config. Its keys are attributes, with a type, a default and a description.

    An assignment is checked as a config file is, and raises ``ValueError``. ``"key" in section``,
    ``section["key"]`` and ``section.keys()`` work as with a dict.
    """

    # JSON has neither NaN nor infinity, so that they could not be read again.
    model_config = ConfigDict(
        extra="forbid", strict=True, validate_assignment=True, allow_inf_nan=False
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        reference = handler(schema)
        described = handler.resolve_ref_schema(reference)
        described.pop("description", None)  # the class's: each key has its own
        for name, text in descriptions_of(cls).items():
            described["properties"][name]["description"] = text
        for name, field in cls.model_fields.items():
            if isinstance(field.default, Map):  # which pydantic cannot write as JSON
                described["properties"][name]["default"] = dict(field.default)
        return reference

    def __contains__(self, key: str) -> bool:
        return key in type(self).model_fields

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def keys(self) -> Iterator[str]:
        return iter(type(self).model_fields)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the keys that differ from the defaults; ``dump()`` has all."""
        fields = type(self).model_fields
        yield from ((k, v) for k, v in super().__repr_args__() if v != fields[str(k)].default)

    def to_dict(self) -> dict[str, Any]:
        """Return the section as nested dicts."""
        return self.model_dump()

    def dump(self) -> str:
        """Return the section as JSON text."""
        return json.dumps(self.to_dict(), indent=4)


def descriptions_of(section: type[Section]) -> dict[str, str]:
    """Return the description of each key: the text below it in the source of its class, or its
    ``Field(description=...)``. Keys that a subclass changes keep theirs."""
    found: dict[str, str] = {}
    for cls in (cls for cls in section.__mro__ if issubclass(cls, Section)):
        fields = cls.model_fields.items()
        found = {k: field.description for k, field in fields if field.description} | found
        found = _texts_below_keys(cls) | found
    return found


@cache
def _texts_below_keys(cls: type) -> dict[str, str]:
    """Read the texts below the keys that a class declares; none if its source is missing."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
    except (OSError, TypeError, SyntaxError):  # a class from a console, or made by a program
        return {}
    return {
        key.target.id: " ".join(text.value.value.split())
        for key, text in itertools.pairwise(body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


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


FreeMap = Annotated[dict[str, Any], AfterValidator(check_content), AfterValidator(_as_map)]
KeyLists = Annotated[dict[str, list[str]], AfterValidator(_as_map)]
Count = Annotated[int, Field(ge=1)]
Steps = Annotated[int, Field(ge=1, le=100_000)]  # of a window: longer ones are all padding
Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class MustBe:
    """An annotation of a key that takes only one ``value``, unlike robomimic's."""

    value: Any
    otherwise: str  # a remedy for users who need another

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return handler(schema) | {"const": self.value}

    def _check(self, given: Any) -> Any:
        if given != self.value:
            raise ValueError(
                f"only {self.value!r} is known here, not {shown(given)}; {self.otherwise}"
            )
        return given


def options_of(section: Section, *read_elsewhere: str) -> dict[str, Any]:
    """Return the keys of a section as arguments of the class that it configures."""
    others = ("enabled", *read_elsewhere)
    return {key: value for key, value in section.to_dict().items() if key not in others}


def check_one_enabled(section: Section, *names: str) -> None:
    """Raise ``ValueError`` unless exactly one of two sections of ``algo`` is enabled."""
    if len({section[name].enabled for name in names}) == 1:
        paths = " and ".join(f"algo.{name}.enabled" for name in names)
        state = "true" if section[names[0]].enabled else "false"
        raise ValueError(f"{paths} are both {state}; enable one of them")


def without_effect(default: Any, exclude: bool = True) -> Any:
    """Declare a key of some robomimic files that has no effect."""
    return Field(
        default,
        exclude=exclude,
        description="Accepted because files of robomimic's may have it. It changes nothing.",
        json_schema_extra={"deprecated": True},
    )


def _ordered(bounds: list[float]) -> list[float]:
    if bounds[0] >= bounds[1]:
        raise ValueError(f"{bounds}: the first must be less than the second")
    return bounds


Bounds = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_ordered)]
