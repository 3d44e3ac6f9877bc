"""Modules that files name. No module is imported because a file names it: it must be imported
already, or the user must have named it as well."""

import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

#: The environment variable that names modules; child processes inherit it.
NAMED = "OFFRL_MODULES"
# Keys of a config whose values may name a user's own parts. Other values may be file names, and
# whoever made those files may have put modules beside them.
OF_NAMES = re.compile(r"(algo|model|env)_name|\w+_class|env|agent|additional_envs|type|wrappers?")


def named() -> list[str]:
    """List the modules that the user named so far."""
    return re.findall(r"[\w.-]+", os.environ.get(NAMED, ""))


def allow(modules: Iterable[str], *folders: str) -> None:
    """Allow files to name these modules of the user's, in this process and those it starts.

    folders: places to look for them, besides those where Python looks.
    """
    if modules := [*modules]:
        os.environ[NAMED] = ",".join(dict.fromkeys([*named(), *modules]))
        places = dict.fromkeys(map(os.path.abspath, folders))
        sys.path += [path for path in places if path not in sys.path]


def allow_names(content: Any, *folders: str) -> None:
    """Call ``allow`` for the modules that are named in a user's config, or in a list of names."""
    allow((module for name in names_in(content) for module in modules_of(name)), *folders)


def names_in(content: Any, key: str = "") -> list[str]:
    """List the values in a config, or in a section of one, that may name a user's own parts. The
    provenance in the config of a run holds the modules that were allowed when it began."""
    if key == "modalities" and isinstance(content, Mapping):  # only the modalities are names
        content, key = [[*group] for group in content.values() if isinstance(group, Mapping)], ""
    if isinstance(content, Mapping):
        return [name for k, part in content.items() for name in names_in(part, str(k))]
    if isinstance(content, (list, tuple)):
        return [name for part in content for name in names_in(part, key)]
    if key == "modules":
        return [f"{content}:"]  # the form of environments' names, module:Id
    is_name = isinstance(content, str) and (not key or OF_NAMES.fullmatch(key))
    return [content] if is_name else []


def modules_of(name: Any) -> list[str]:
    """List the modules that a name may mean: ``module.name`` (which may be a module itself), or
    ``module:Id``. A plain name means none."""
    name = name if isinstance(name, str) else ""
    module, colon, _ = name.partition(":")
    is_dotted = re.fullmatch(r"[\w-]+(\.[\w-]+)+", name)
    return [module] if module and colon else [name, name.rpartition(".")[0]] if is_dotted else []


def check_allowed(name: Any, asks: str) -> list[str]:
    """List the allowed modules that a name in a file may mean. Raises ``ValueError`` for others.

    asks: the place of the name, for messages.
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
    allow(allowed)  # in processes that this one starts, too
    return allowed


def _is_package(name: str) -> bool:
    """Say whether a module is a package, by importing it: an attribute proves nothing, as a module
    may make up attributes."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return getattr(spec, "submodule_search_locations", None) is not None


def imported(module: str, says: str) -> ModuleType | None:
    """Import a module. Returns ``None`` if there is none; ``ValueError`` if the import fails.

    says: the place of its name, for messages.
    """
    above = module.rpartition(".")[0]
    if above in sys.modules and not _is_package(above):
        return None
    try:
        return importlib.import_module(module)
    except (ImportError, SyntaxError) as error:
        # An error in a module that is there is for the user to see.
        absent = error.name if type(error) is ModuleNotFoundError else None
        if absent and f"{module}.".startswith(f"{absent}."):
            return None
        raise ValueError(f"{says}: importing {module} failed: {error}") from error


def import_all(modules: Iterable[str], *folders: str) -> None:
    """Import and ``allow`` modules that the user named. Raises ``ValueError`` if one is missing.

    folders: places to look for them, besides those where Python looks.
    """
    modules = [*modules]
    allow(modules, *folders)
    for module in modules:
        if module[:1] in ("", ".") or imported(module, "modules") is None:
            raise ValueError(f"modules: no {module!r} is here, beside the file, or installed")


def class_named(path: str, base: type, asks: str) -> type:
    """Import the class that a file names by its path, ``module.Name``. Raises ``ValueError`` if the
    module is not allowed, or the object is no subclass of ``base``; it is not called.

    asks: the place of the path, for messages.
    """
    module, _, name = path.rpartition(".")
    is_allowed = module in check_allowed(path, asks)
    holder = imported(module, asks) if is_allowed else None
    try:
        found = getattr(holder, name, None)
    except Exception as error:  # some modules import their parts when these are asked for
        raise ValueError(f"{asks}: importing {path} failed: {error}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        kind = f"{base.__module__}.{base.__name__}"
        raise ValueError(f"{asks}: {path!r} is not the path (module.Name) of a subclass of {kind}")
    return found
