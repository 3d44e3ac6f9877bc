"""Modules that files name. Nothing in a file is imported because the file says so: a module must be
imported already, or the user must have named it as well."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

#: The environment variable that names modules. Processes that begin here have it, too.
NAMED = "OFFRL_MODULES"
# Keys of a config whose values may name parts of a user's own. Other values may be names of files,
# beside which lie modules of whoever made them.
OF_NAMES = re.compile(r"(algo|model|env)_name|\w+_class|env|agent|additional_envs|type|wrappers?")


def named() -> list[str]:
    """The modules that the user named so far."""
    return re.findall(r"[\w.-]+", os.environ.get(NAMED, ""))


def allow(modules: Iterable[str], *folders: str) -> None:
    """Let files name these modules from now on, here and in processes that begin here, because the
    user named them.

    folders: where they may lie, besides where Python looks.
    """
    if modules := [*modules]:
        os.environ[NAMED] = ",".join(dict.fromkeys([*named(), *modules]))
        places = dict.fromkeys(map(os.path.abspath, folders))
        sys.path += [path for path in places if path not in sys.path]


def allow_names(content: Any, *folders: str) -> None:
    """``allow`` the modules that are named in what the user gave: a config, or names."""
    allow((module for name in names_in(content) for module in modules_of(name)), *folders)


def names_in(content: Any, key: str = "") -> list[str]:
    """The names of a user's own parts that there may be in a config or in a section of one. The
    config of a run has in its provenance the modules that were allowed when it began."""
    if key == "modalities" and isinstance(content, Mapping):  # names of keys stand behind them
        content, key = [[*group] for group in content.values() if isinstance(group, Mapping)], ""
    if isinstance(content, Mapping):
        return [name for k, part in content.items() for name in names_in(part, str(k))]
    if isinstance(content, (list, tuple)):
        return [name for part in content for name in names_in(part, key)]
    if key == "modules":
        return [f"{content}:"]  # as before the name of an environment
    is_name = isinstance(content, str) and (not key or OF_NAMES.fullmatch(key))
    return [content] if is_name else []


def modules_of(name: Any) -> list[str]:
    """The modules that a name may mean: ``module.name`` (which may be a module itself), or
    ``module:Id``. None where it is a plain name."""
    module, colon, _ = str(name).partition(":")
    is_dotted = re.fullmatch(r"[\w-]+(\.[\w-]+)+", str(name))
    return [module] if module and colon else [name, name.rpartition(".")[0]] if is_dotted else []


def check_allowed(name: Any, asks: str) -> list[str]:
    """The modules that a name in a file may mean, as far as they are allowed. ``ValueError`` if it
    means one that is not.

    asks: what names it, for messages.
    """
    meant = modules_of(name)
    allowed = [x for x in meant if x in sys.modules or x in named() or x.startswith("offrl.")]
    is_its_module = meant[1:] and _is_package(meant[-1]) and importlib.util.find_spec(name)
    if meant and (not allowed or (is_its_module and name not in allowed)):
        module = name if is_its_module else meant[-1]
        raise ValueError(
            f"{asks} asks for the module {module}, whose code would run; if you trust it, allow it "
            f"with --module {module}, in Python with modules=[{module!r}] or by importing it "
            f"first, or with {NAMED}={module}"
        )
    allow(allowed)  # in processes that begin here, too
    return allowed


def _is_package(name: str) -> bool:
    """Whether a module has others in it, by what it was imported from: attributes may be made up as
    they are asked for."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "submodule_search_locations", None) is not None


def imported(module: str, says: str) -> ModuleType | None:
    """Import a module. ``None`` if there is none; ``ValueError`` if it cannot be imported.

    says: where it is named, for messages.
    """
    above = module.rpartition(".")[0]
    if above in sys.modules and not _is_package(above):
        return None
    try:
        return importlib.import_module(module)
    except (ImportError, SyntaxError) as error:
        # That there is no such module is one thing; one that is there is the user's to see.
        absent = error.name if type(error) is ModuleNotFoundError else None
        if absent and f"{module}.".startswith(f"{absent}."):
            return None
        raise ValueError(f"{says}: importing {module} failed: {error}") from error


def import_all(modules: Iterable[str], *folders: str) -> None:
    """Import modules that the user named, and ``allow`` them. ``ValueError`` where there is none.

    folders: where they may lie, besides where Python looks.
    """
    modules = [*modules]
    allow(modules, *folders)
    for module in modules:
        if module[:1] in ("", ".") or imported(module, "modules") is None:
            raise ValueError(
                f"modules: there is no module {module!r} here, beside the file, or among the "
                "installed packages"
            )


def class_named(path: str, base: type, asks: str) -> type:
    """The class that a file names by its import path, ``module.Name``, where its module is allowed.
    ``ValueError`` for anything but a subclass of ``base``, before anything of it is called.

    asks: what names it, for messages.
    """
    module, _, name = path.rpartition(".")
    is_allowed = module in check_allowed(path, asks)
    found = getattr(imported(module, asks), name, None) if is_allowed else None
    if not (isinstance(found, type) and issubclass(found, base)):
        kind = f"{base.__module__}.{base.__name__}"
        raise ValueError(f"{asks}: {path!r} is not the path (module.Name) of a subclass of {kind}")
    return found
