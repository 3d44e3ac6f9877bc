"""The one kind of global state: tables from a name in a config to the class that it stands for."""

import difflib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from offrl.modules import check_allowed, imported

T = TypeVar("T")
PLAIN = {bool: (bool,), int: (int,), float: (float, int)}  # types that an option accepts


def shown(value: Any) -> str:
    """Write a value for a message: on one line, of 80 characters at most."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(name: str, known: Iterable[str], ending: str = "") -> str:
    """Write a sentence with the known name that is most like ``name``, if any is similar; shown
    with the ``ending`` that all have."""
    close = difflib.get_close_matches(name, [*known], n=1)
    return f" Did you mean {close[0] + ending!r}?" if close else ""


class Registry:
    """A table from names in a config to classes or functions. A plain name is looked up among the
    entries, then (if the registry has a ``package``) in the module ``<package>.<name>``. A dotted
    name ``module.name`` is of a user's own module, which must be allowed (``offrl.modules``) and
    register ``name`` when it is imported; ``module`` alone works, too. A user's entry with the name
    of one of the package's is found by its dotted name only."""

    def __init__(self, kind: str, package: str | None = None):
        self.kind = kind
        self.package = package
        self._entries: dict[str, Any] = {}
        self._of_modules: dict[tuple[str, str], Any] = {}
        self._own: set[str] = set()  # names of the package's

    def register(self, name: str, module: str | None = None) -> Callable[[T], T]:
        """Make a decorator that enters the decorated object under ``name``.

        module: the module that owns it; ``None``: the caller's.
        """
        place = module or sys._getframe(1).f_globals["__name__"]

        def enter(entry: T) -> T:
            self._of_modules[place, name] = entry
            if self.package is not None and place.startswith(f"{self.package}."):
                self._own.add(name)
            elif name in self._own:
                return entry
            self._entries[name] = entry
            return entry

        return enter

    def __getitem__(self, name: str) -> Any:
        entry = self._of_module(name) or self._entries.get(name)
        may_be_module = entry is None and (self.package or "." in name)
        if may_be_module and re.fullmatch(r"[\w-]+(\.[\w-]+)*", name) and self._import(name):
            entry = self.get(name)
        if entry is None:
            known = self.names()
            hint = did_you_mean(name, known)
            if "." in name and len(name) <= 100:
                module = name.rpartition(".")[0]
                hint = f" There is no module {name} or {module}, neither here nor installed."
            elif name.isidentifier() and name != "__main__" and importlib.util.find_spec(name):
                hint = f" For the module {name} write {name}.{name}."
            raise ValueError(f"unknown {self.kind} {shown(name)}.{hint} Known: {', '.join(known)}.")
        return entry

    def get(self, name: str) -> Any | None:
        """Return an entry if its module is imported already, else ``None``."""
        entry = self._of_module(name) or self._entries.get(name)
        return entry or self._entries.get(name.rpartition(".")[2])

    def _of_module(self, name: str) -> Any | None:
        """Return the entry of a dotted name, if its module has registered it."""
        folder, _, key = name.rpartition(".")
        if not folder:
            return None
        return self._of_modules.get((name, key)) or self._of_modules.get((folder, key))

    def build(self, name: str, *args: Any, **options: Any) -> Any:
        """Call an entry. Options that only other entries take, as in a config from a template, are
        left out; ``ValueError`` for options that no entry takes, or of a wrong type."""
        entry = self[name]
        own = inspect.signature(entry).parameters
        for option, value in options.items():
            takes = own[option].annotation if option in own else None
            if takes in PLAIN and type(value) not in PLAIN[takes]:
                needed = takes.__name__
                raise ValueError(f"{self.kind} {name}: {option} takes {needed}, not {shown(value)}")
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
            return entry(*args, **options)
        taken = [inspect.signature(other).parameters for other in self._entries.values()]
        strange = [o for o in options if not any(o in others for others in taken)]
        if strange:
            hint = did_you_mean(strange[0], own) or f" It takes {', '.join(own)}."
            raise ValueError(f"{self.kind} {name}: takes no {strange[0]!r}.{hint}")
        return entry(*args, **{key: v for key, v in options.items() if key in own})

    def names(self) -> list[str]:
        """List every known name. Modules of the package are imported to learn theirs."""
        if self.package:
            for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
                importlib.import_module(f"{self.package}.{module.name}")
        return sorted(self._entries)

    def _import(self, name: str) -> bool:
        """Import the module that should register ``name``. Returns whether there is one."""
        folder, _, key = name.rpartition(".")
        asks = f"{self.kind} {shown(name)}"
        for module in check_allowed(name, asks) if folder else [f"{self.package}.{name}"]:
            if imported(module, asks) is None:
                continue
            is_there = key in self._entries.keys() - self._own or self._of_module(name) is not None
            if folder and not is_there:
                also = " and in its config (ALGO_NAME)" if self is ALGO_CONFIGS else ""
                raise ValueError(
                    f"{asks}: {module} was imported but registers no {self.kind} {key!r}; name it "
                    f"so where it registers{also}"
                )
            return True
        return False


ALGOS = Registry("algorithm", package="offrl.algos")
ALGO_CONFIGS = Registry("algorithm", package="offrl.algos")
HEADS = Registry("policy head")
TRUNKS = Registry("trunk")
MODALITIES = Registry("observation modality")
CORES = Registry("encoder core")
BACKBONES = Registry("image backbone")
POOLINGS = Registry("pooling")
RANDOMIZERS = Registry("randomizer")
ENVS = Registry("environment type", package="offrl.envs")
EXPERTS = Registry("scripted expert")
#: The parts of a pipeline (``offrl.online.Registers``).
PARTS = {kind: Registry(kind) for kind in ("algorithm", "model", "agent", "environment")}


def modules_of_users() -> list[str]:
    """List the modules outside of offrl that have registered something."""
    registries = [x for x in globals().values() if isinstance(x, Registry)]
    entries = [entry for registry in registries for entry in registry._entries.values()]
    modules = {getattr(entry, "__module__", "offrl") for entry in entries}
    return sorted(module for module in modules if module.split(".")[0] != "offrl")
