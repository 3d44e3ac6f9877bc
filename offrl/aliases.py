"""Keep earlier names and forms for one more version: the names of modules that have moved, and
policies whose methods take the parts of what they see as separate arguments."""

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from inspect import Parameter, signature
from types import ModuleType
from typing import Any

MOVED: dict[str, str] = {  # the earlier path of a module -> where it is now
    "offrl.algos.shared.roles": "offrl.faces.algorithm",
    "offrl.config.cells": "offrl.studies.cells",
    "offrl.config.distributed": "offrl.config.online",
    "offrl.config.experiment": "offrl.config.schema",
    "offrl.config.hints": "offrl.config.build",
    "offrl.config.longer": "offrl.config.build",
    "offrl.config.study": "offrl.studies.config",
    "offrl.config.translate": "offrl.config.pipeline",
    "offrl.data.actions": "offrl.data.computed",
    "offrl.data.clips": "offrl.data.formats.film",
    "offrl.data.convert": "offrl.data.formats.convert",
    "offrl.data.d4rl": "offrl.data.formats.d4rl",
    "offrl.data.downsample": "offrl.edits.relabel",
    "offrl.data.edit": "offrl.edits.edit",
    "offrl.data.edits": "offrl.edits.rearrange",
    "offrl.data.elsewhere": "offrl.data.formats.external",
    "offrl.data.exchange": "offrl.data.formats.exchange",
    "offrl.data.expressions": "offrl.edits.selection",
    "offrl.data.files": "offrl.data.formats.files",
    "offrl.data.formats.clips": "offrl.data.formats.film",
    "offrl.data.formats.robosuite_raw": "offrl.data.formats.robosuite",
    "offrl.data.hdf5": "offrl.data.formats.hdf5",
    "offrl.data.hindsight": "offrl.data.sampling",
    "offrl.data.lerobot": "offrl.data.formats.lerobot",
    "offrl.data.lerobot_stats": "offrl.data.formats.lerobot_stats",
    "offrl.data.lerobot_writer": "offrl.data.formats.lerobot_writer",
    "offrl.data.minari": "offrl.data.formats.minari",
    "offrl.data.outliers": "offrl.data.remarks",
    "offrl.data.pixels": "offrl.edits.rearrange",
    "offrl.data.priorities": "offrl.data.sampling",
    "offrl.data.reader": "offrl.data.loader",
    "offrl.data.relabel": "offrl.edits.relabel",
    "offrl.data.replayed": "offrl.data.rollout",
    "offrl.data.robosuite_raw": "offrl.data.formats.robosuite",
    "offrl.data.selection": "offrl.edits.selection",
    "offrl.data.sources": "offrl.data.steps",
    "offrl.edits.downsample": "offrl.edits.relabel",
    "offrl.edits.expressions": "offrl.edits.selection",
    "offrl.edits.pixels": "offrl.edits.rearrange",
    "offrl.envs.adapted": "offrl.envs.wrappers",
    "offrl.envs.demonstrated": "offrl.envs.experts.expert",
    "offrl.envs.experts.motion": "offrl.envs.experts.robosuite",
    "offrl.envs.keyboard": "offrl.envs.rendering",
    "offrl.envs.relabel": "offrl.edits.simulated",
    "offrl.envs.robosuite.fast.sensors": "offrl.envs.robosuite.fast.scene",
    "offrl.envs.robosuite_goals": "offrl.envs.robosuite.goals",
    "offrl.envs.robosuite_scene": "offrl.envs.robosuite.fast.scene",
    "offrl.envs.robosuite_sensors": "offrl.envs.robosuite.fast.scene",
    "offrl.envs.robosuite_step": "offrl.envs.robosuite.fast.step",
    "offrl.envs.robosuite_versions": "offrl.envs.robosuite.versions",
    "offrl.envs.vector.snapshot": "offrl.envs.vector.native",
    "offrl.envs.window": "offrl.envs.rendering",
    "offrl.envs.workers.worker": "offrl.envs.workers.pool",
    "offrl.kernels.adam": "offrl.kernels.optim",
    "offrl.kernels.conv": "offrl.kernels.layers",
    "offrl.kernels.dropout": "offrl.kernels.layers",
    "offrl.kernels.end_to_end": "offrl.kernels.optim",
    "offrl.kernels.ensemble": "offrl.kernels.layers",
    "offrl.kernels.few_rows": "offrl.kernels.layers",
    "offrl.kernels.linear": "offrl.kernels.layers",
    "offrl.kernels.norm": "offrl.kernels.optim",
    "offrl.kernels.perceptron": "offrl.kernels.layers",
    "offrl.models.actor_value": "offrl.models.nets",
    "offrl.models.attention": "offrl.models.transformer",
    "offrl.models.decision_transformer": "offrl.models.transformer",
    "offrl.models.pretrained": "offrl.models.backbones",
    "offrl.models.resnet": "offrl.models.backbones",
    "offrl.models.unet": "offrl.models.denoisers",
    "offrl.online.by_hand": "offrl.faces.by_hand",
    "offrl.online.control": "offrl.faces.agent",
    "offrl.online.environment": "offrl.faces.environment",
    "offrl.online.own_network": "offrl.faces.own_network",
    "offrl.online.parts": "offrl.assembly.acting",
    "offrl.online.pipeline": "offrl.pipelines.pipeline",
    "offrl.online.pipeline_explorer": "offrl.pipelines.explorer",
    "offrl.online.registers": "offrl.pipelines.registers",
    "offrl.online.roles": "offrl.faces.four_roles",
    "offrl.online.setting": "offrl.assembly.spaces",
    "offrl.online.start": "offrl.assembly.start",
    "offrl.online.tagged": "offrl.training.checkpointer",
    "offrl.reports.study": "offrl.studies.table",
    "offrl.training.base": "offrl.training.loop",
    "offrl.training.experiment": "offrl.assembly.recorded",
    "offrl.training.online": "offrl.training.acting",
    "offrl.training.pipeline": "offrl.pipelines.run",
    "offrl.training.proxies": "offrl.training.evaluator",
    "offrl.training.remote": "offrl.training.launch",
    "offrl.training.resume": "offrl.training.run",
    "offrl.training.search": "offrl.studies.search",
    "offrl.training.study": "offrl.studies.run",
    "offrl.training.tagged": "offrl.training.checkpointer",
    "offrl.training.trainer": "offrl.training.recorded",
}


class Moved(MetaPathFinder, Loader):
    """Imports a module under its earlier path, when that path is first imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return ``None``: Python makes a module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(MOVED[module.__name__])


sys.meta_path.append(Moved())


def in_one_or_several(method: Any, kind: Any, num: int) -> Callable[..., Any]:
    """Make a method that can be called with one argument of this ``kind`` or with its first ``num``
    parts, ``(obs, goal, state, generators)``, of one that is written in either form."""
    places = [x.kind for x in signature(method.__get__(object())).parameters.values()]
    num_taken = num
    if Parameter.VAR_POSITIONAL not in places:
        by_place = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
        num_taken = min(num, sum(place in by_place for place in places))

    @wraps(method)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        own = method.__get__(self, type(self))  # also of a static method, or the class's
        is_one = bool(given) and isinstance(given[0], kind)
        if num_taken > 2:  # earlier, which may have arguments of its own
            return own(*(given[0][:num_taken] if is_one else given), **named)
        if is_one:
            return own(*given, **named)
        parts = {name: named.pop(name) for name in kind._fields if name in named}
        return own(kind(*given, **parts), **named)

    return call
