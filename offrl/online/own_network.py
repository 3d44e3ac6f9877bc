"""A network of a user's own, in the place of one of an algorithm's."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offrl.algos.shared.model import Model, Networks
from offrl.models import MLP, Actor, ActorValue, Deterministic, DiscreteCritics
from offrl.models.heads import CategoricalHead, DeterministicHead, FreeGaussianHead
from offrl.registry import ALGOS, shown

PAGE = "docs/howto/own_network.md"


def is_own(model: Any) -> bool:
    """Whether it is a user's own module, or the class of one, and not networks of offrl's."""
    is_class = isinstance(model, type) and issubclass(model, nn.Module)
    if model is None or is_class:
        return is_class
    if not isinstance(getattr(model, "nets", model), nn.Module):
        raise ValueError(f"model: {shown(model)} is no torch.nn.Module; see {PAGE}")
    return not isinstance(model, (Networks, nn.ModuleDict))


def use_network(alg: Any, model: Any) -> nn.Module:
    """Let an algorithm that has learned nothing yet have a module as its policy or its values, and
    return that. ``ValueError`` where what it gives fits neither.

    model: gives for observations ``[B, ...]`` a number for each action ``[B, A]`` (logits, values,
        or an action between its bounds, -1 and 1), the value ``[B, 1]``, or a pair of both. A class
        is made with ``input_shape``, ``state_size`` (how many observations are stacked),
        ``action_size`` and ``device``.
    """
    config, frames = alg.global_config, alg.global_config.train.frame_stack
    shapes, kind, normalization = alg.obs_spec.shapes("obs"), type(alg), alg.serialize()
    if isinstance(model, type):
        sizes = {"input_shape": tuple(next(iter(shapes.values()))), "state_size": frames}
        sizes |= {"action_size": alg.ac_dim, "device": alg.device}
        try:
            takes = inspect.signature(model).parameters
            named = {name: sizes[name] for name in sizes.keys() & takes}
            model = model(**named) if named or not takes else model(*sizes.values())
        except TypeError as error:
            raise ValueError(
                f"model: {model.__name__} is not made with {', '.join(sizes)} ({error}); give a "
                "module that is made already"
            ) from None

    class WithOwn(kind):  # type: ignore[misc, valid-type]
        def _create_networks(self) -> None:
            super()._create_networks()
            model.to(self.device).eval()  # statistics do not move now
            _put(self, model, {k: torch.zeros(2, frames, *x) for k, x in shapes.items()})
            model.train()

    given = {"config": config, "obs_spec": alg.obs_spec, "ac_dim": alg.ac_dim, "device": alg.device}
    vars(alg).clear()
    alg.__class__ = WithOwn
    alg.__init__(**given, **ALGOS[config.algo_name](config.algo)[1])
    alg.set_statistics(**normalization["normalization"])
    return model


class _Own(nn.Module):
    """Observations ``{key: [B, frames, ...]}`` to an output of a module, ``[B, 1, N]``."""

    def __init__(self, module: nn.Module, keys: list[str], is_flat: bool, index: int):
        super().__init__()
        self.module, self._keys, self._is_flat, self._index = module, keys, is_flat, index

    def forward(self, obs: Mapping[str, Tensor], goal: Any = None) -> Tensor:
        return self.outputs(obs)[self._index][:, None]

    def outputs(self, obs: Mapping[str, Tensor]) -> list[Tensor]:
        seen = {key: obs[key] for key in self._keys}
        if self._is_flat:  # frames one behind the other
            seen = {key: x.flatten(1, min(2, x.ndim - 1)) for key, x in seen.items()}
        values = isinstance(self.module, Model) and type(self.module).forward is nn.Module.forward
        call = self.module.value if values else self.module
        given = call(seen[self._keys[0]] if len(seen) == 1 else seen)
        return [*given] if isinstance(given, (tuple, list)) else [given]


class _OwnValues(DiscreteCritics):
    """A module that values all actions, as one critic."""

    def __init__(self, own: nn.Module, value_bounds: Any):
        nn.Module.__init__(self)
        self.own, self.value_bounds = own, value_bounds
        self.num_critics, self.num_outputs, self.dueling = 1, 1, False

    def all_outputs(self, obs: Any, goal: Any = None) -> Tensor:
        return self.own(obs)[None, :, 0, :, None]

    def clip_gradients(self, limit: float | None) -> Tensor:
        return nn.utils.clip_grad_norm_(self.parameters(), limit or float("inf"))[None]


class _AsItIs(nn.Module):
    """The head behind a module that gives actions."""

    def forward(self, actions: Tensor) -> Deterministic:
        return Deterministic(actions)


def _put(alg: Any, model: nn.Module, probe: Mapping[str, Tensor]) -> None:
    """Put a module into the networks of an algorithm that were just made."""
    sizes = {(2, 1): "value", (2, alg.ac_dim): "actions"}  # the latter of one action
    why = ""
    for is_flat in (True, False):
        try:
            with torch.no_grad():
                here = {key: x.to(alg.device) for key, x in probe.items()}
                given = _Own(model, [*probe], is_flat, 0).outputs(here)
                shapes = [tuple(x.shape) for x in given]
        except Exception as error:  # of a user's own
            why = why or " ".join(str(error).split())[:200]
            continue
        owns = {sizes.get(x): _Own(model, [*probe], is_flat, i) for i, x in enumerate(shapes)}
        if None not in owns and len(owns) == len(given) and _fill(alg, owns):
            return
        why = why or f"for 2 observations it gives {', '.join(str([*x]) for x in shapes)}"
    raise ValueError(
        f"model: {type(model).__name__} does not fit {alg.global_config.algo_name} with "
        f"{alg.ac_dim} actions ({why}); {PAGE} says how networks of your own are used"
    )


def _fill(alg: Any, owns: Mapping[Any, nn.Module]) -> bool:
    """Whether the networks have places for what a module gives, which they then take from it."""
    name = next((x for x in ("policy", "actor", "critic") if x in alg.nets), "")
    net, actions = alg.nets[name] if name else None, owns.get("actions")
    if isinstance(net, ActorValue) and net.memory is None:
        net.value_encoder = net.value_encoder or net.encoder
        if "value" in owns:
            net.value_encoder, net.value_trunk = owns["value"], MLP(1, [])
            net.value_head = nn.Identity()
        if actions is not None:
            net.encoder, net.actor_trunk, net._few_rows = actions, MLP(alg.ac_dim, []), None
            net.actor_head = _as_it_is(net.actor_head)
    elif [*owns] == ["actions"] and isinstance(net, Actor) and _as_it_is(net.head):
        net.encoder, net.trunk, net.head = actions, MLP(alg.ac_dim, []), _as_it_is(net.head)
    elif [*owns] == ["actions"] and type(net) is DiscreteCritics and net.num_critics == 1:
        alg.nets[name] = _OwnValues(actions, net.value_bounds)
    else:
        return False
    if f"{name}_target" in alg.nets:
        alg.add_target(name)
    return True


def _as_it_is(head: Any) -> Any:
    """A head that takes what it is given for its logits, means or actions; ``None``: none can."""
    if isinstance(head, CategoricalHead):
        head.logits = nn.Identity()
    elif isinstance(head, FreeGaussianHead):
        head.mean = nn.Identity()
    else:
        return _AsItIs() if isinstance(head, DeterministicHead) else None
    return head
