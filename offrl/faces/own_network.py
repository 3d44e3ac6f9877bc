"""Replaces an algorithm's networks by a user's own."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from offrl.algos.shared.model import Model
from offrl.models import MLP, Actor, ActorValue, Deterministic, DiscreteCritics
from offrl.models.heads import CategoricalHead, DeterministicHead, FreeGaussianHead

PAGE = "docs/howto/own_network.md"


def use_network(alg: Any, model: Any) -> nn.Module:
    """Use a module as the policy or the values of an untrained algorithm. Returns the module.
    Raises ``ValueError`` if it fits no network.

    model: turns observations ``[B, ...]`` into a number for each action ``[B, A]`` (logits, values,
        or an action between its bounds, -1 and 1), or into the value of the state ``[B, 1]``. A
        class is called with the shape of an observation, ``train.frame_stack``, ``A`` and the
        device.
    """
    shapes, frames = alg.obs_spec.shapes("obs"), alg.global_config.train.frame_stack
    name = getattr(model, "__name__", type(model).__name__)
    try:
        if isinstance(model, type):
            model = model(tuple(next(iter(shapes.values()))), frames, alg.ac_dim, alg.device)
        own = _OwnNetwork(model, [*shapes]).to(alg.device, torch.float32)
        own.eval()  # keeps statistics
        seen = {k: torch.zeros(2, frames, *x, device=alg.device) for k, x in shapes.items()}
        problem = "" if own(seen).requires_grad else "it has no weights that learn"
        with torch.no_grad():  # last, as a module with a graph cannot be copied
            given = own(seen).shape
        own.train(alg.nets.training)
        if not problem and not _put_in_place(alg, own, given[1:]):
            problem = f"it gives [2, {given[-1]}] for 2 states"
    except Exception as error:  # of the user's code
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if problem:
        raise ValueError(
            f"model: {name} does not fit {alg.global_config.algo_name} with {alg.ac_dim} actions "
            f"({problem}); {PAGE} says what a network of your own is made with and gives"
        )
    alg.take_stock()
    return model


class _OwnNetwork(nn.Module):
    """Calls a user's module with observations ``{key: [B, frames, ...]}``: ``[B, 1, N]``."""

    def __init__(self, module: nn.Module, keys: list[str]):
        super().__init__()
        values = isinstance(module, Model) and type(module).forward is nn.Module.forward
        self.module, self._keys, self._has_values = module, keys, values

    def forward(self, obs: Mapping[str, Tensor], goal: Any = None) -> Tensor:
        # Frames are joined in the first dimension of copies, as some modules write to inputs.
        seen = {k: obs[k].clone().flatten(1, min(2, obs[k].ndim - 1)) for k in self._keys}
        call: Any = self.module.value if self._has_values else self.module
        return call(seen if len(seen) > 1 else seen[self._keys[0]]).unsqueeze(1).float()


class _NoHead(nn.Module):
    """Replaces the head after a module that returns actions."""

    def forward(self, actions: Tensor) -> Deterministic:
        return Deterministic(actions)


def _put_in_place(alg: Any, own: nn.Module, gives: tuple[int, ...]) -> bool:
    """Replace encoder, trunk and the head's last layer of a network by a module, whose output for
    one state has the shape ``gives``. Returns whether the module fits any network."""
    name = next((x for x in ("policy", "actor", "critic") if x in alg.nets), "")
    net: Any = alg.nets[name] if name else None
    per_action = gives == (1, alg.ac_dim)
    if isinstance(net, ActorValue) and net.memory is None and (per_action or gives == (1, 1)):
        net.value_encoder = net.value_encoder or net.encoder
        if per_action:
            net.encoder, net.actor_trunk, net._few_rows = own, MLP(alg.ac_dim, []), None
            net.actor_head = _without_last_layer(net.actor_head)
        else:
            net.value_encoder, net.value_trunk, net.value_head = own, MLP(1, []), nn.Identity()
    elif per_action and isinstance(net, Actor) and _without_last_layer(net.head):
        net.encoder, net.trunk, net.head = own, MLP(alg.ac_dim, []), _without_last_layer(net.head)
    elif per_action and type(net) is DiscreteCritics and not net.dueling and net.num_critics == 1:
        net.encoders, net.trunk = nn.ModuleList([own]), nn.Unflatten(0, (1, -1))
        net.head[net.OUTPUT] = nn.Identity()
    else:
        return False
    if f"{name}_target" in alg.nets:
        alg.add_target(name)
    return True


def _without_last_layer(head: Any) -> Any:
    """Remove a head's last layer: its input is logits, means or actions. ``None`` if impossible."""
    if isinstance(head, CategoricalHead):
        head.logits = nn.Identity()  # type: ignore[assignment]
    elif isinstance(head, FreeGaussianHead):
        head.mean = nn.Identity()  # type: ignore[assignment]
    else:
        return _NoHead() if isinstance(head, DeterministicHead) else None
    return head
