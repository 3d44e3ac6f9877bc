# ruff: noqa: F403
"""Typed configs with robomimic's sections, key names and defaults.

``config_factory("bc", {"train": {"batch_size": 256}})`` gives the defaults of an algorithm with
overrides laid over them. Every key is checked: a wrong type, an unknown key or contradictory
switches raise ``ValueError`` naming the dotted path, what is allowed and the nearest known key. A
config contains no behaviour.

Names are imported on first use, so that finding data and files does not need pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offrl.config.names import *


def __getattr__(name: str) -> Any:
    return getattr(import_module("offrl.config.names"), name)


def __dir__() -> list[str]:
    return dir(import_module("offrl.config.names"))
