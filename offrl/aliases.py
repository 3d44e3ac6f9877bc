"""Let earlier names work for one version more: modules that have moved."""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, str] = {  # the earlier path of a module -> where it is now
    "offrl.training.experiment": "offrl.assembly.recorded",
}


class Moved(MetaPathFinder, Loader):
    """Finds the module that an earlier path means. Nothing is imported before it is asked for."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make the module, whose place the one that is meant takes."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


sys.meta_path.append(Moved())
