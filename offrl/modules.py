"""Modules that files name. Nothing in a file is imported because the file says so: a module must be
imported already, or the user must have named it as well."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

#: The environment variable that names modules. Processes that begin here have it, too.
NAMED = "OFFRL_MODULES"
# Keys of a config whose values may be names of a user's own parts.
OF_NAMES = re.compile(r"(algo|model|env)_name|\w+_class|env|agent|additional_envs|type|wrappers?")


def named() -> list[str]:
    """The modules that the user named so far."""
    return re.findall(r"[\w.-]+", os.environ.get(NAMED, ""))


def modules_of(name: Any) -> list[str]:
    """The modules that a name in a file may mean: ``module.name`` (which may be a module itself),
    or ``module:Id``. None where it is a plain name."""
    if not isinstance(name, str):
        return []
    module, colon, _ = name.partition(":")
    is_dotted = re.fullmatch(r"[\w-]+(\.[\w-]+)+", name)
    return [module] if colon else [name, name.rpartition(".")[0]] if is_dotted else []


def allow(modules: Iterable[str], *folders: str) -> None:
    """Let files name these modules from now on, here and in processes that begin here, because the
    user named them.

    folders: where they may lie, besides where Python looks.
    """
    if modules := [*modules]:
        os.environ[NAMED] = ",".join(dict.fromkeys([*named(), *modules]))
        places = dict.fromkeys(map(os.path.abspath, folders))
        sys.path += [path for path in places if path not in sys.path]


def allow_names(names: Iterable[Any], *folders: str) -> None:
    """``allow`` the modules of names that stand where the user said what is used."""
    allow((module for name in names for module in modules_of(name)), *folders)


def is_allowed(module: str) -> bool:
    return module in sys.modules or module in named() or module.startswith("offrl.")


def check_allowed(name: Any, asks: str) -> list[str]:
    """The modules that a name in a file may mean, as far as they are allowed. ``ValueError`` if
    it means one that is not.

    asks: what names it, for messages.
    """
    meant = modules_of(name)
    allowed = [module for module in meant if is_allowed(module)]
    above = sys.modules.get(meant[-1]) if meant[1:] and name not in allowed else None
    if hasattr(above, "__path__") and importlib.util.find_spec(name):
        raise _refusal(name, asks)
    if meant and not allowed:
        raise _refusal(meant[-1], asks)
    allow(allowed)  # in processes that begin here, too
    return allowed


def import_all(modules: Sequence[str], *folders: str) -> None:
    """Import modules that the user named and ``allow`` them, in processes that begin here, too."""
    allow(modules, *folders)
    for module in modules:
        import_named(module, "modules")


def import_named(module: str, says: str) -> ModuleType:
    """Import a module that the user named. ``ValueError`` if there is none.

    says: where it is named, for messages.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ValueError(
            f"{says}: there is no module {module!r} here, beside the file, or among the installed "
            "packages"
        ) from None


def class_named(path: str, base: type, asks: str) -> type:
    """The class that a file names by its import path, ``module.Name``, where its module is allowed.

    Raises ``ValueError`` for anything but a subclass of ``base``, before anything of it is called.

    asks: what names it, for messages.
    """
    module, _, name = path.rpartition(".")
    if not module:
        raise ValueError(f"{asks}: {path!r} is no import path; write module.{path}")
    if not is_allowed(module):
        raise _refusal(module, asks)
    found = getattr(import_named(module, asks), name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{asks}: {path} is no subclass of {base.__module__}.{base.__name__}")
    return found


def names_in(content: Any, key: str = "") -> list[str]:
    """What may name a user's own parts in a config, or in a section of one: also what a run has in
    its provenance, modules that were allowed when it began."""
    if key == "modalities":  # the names stand before the keys of observations
        groups = content.values() if isinstance(content, Mapping) else ()
        return [name for group in groups if isinstance(group, Mapping) for name in group]
    if isinstance(content, Mapping):
        return [name for k, part in content.items() for name in names_in(part, str(k))]
    if isinstance(content, (list, tuple)):
        return [name for part in content for name in names_in(part, key)]
    if key == "modules" and isinstance(content, str):
        return [f"{content}:"]  # as before the name of an environment
    return [content] if isinstance(content, str) and OF_NAMES.fullmatch(key) else []


def _refusal(module: str, asks: str) -> ValueError:
    return ValueError(
        f"{asks} asks for the module {module}, whose code would run; if you trust it, allow it "
        f"with --module {module}, in Python with modules=[{module!r}] or by importing it first, or "
        f"with {NAMED}={module}"
    )
