"""Parameters that lie end to end, so that clipping their gradient and a step of the optimizer are a
few calls, however many layers there are: 4 % of a round of PPO or A2C with small networks."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import Parameter


class EndToEnd(Parameter):
    """One parameter that those of a network, with their gradients, become parts of.

    All of them must get a gradient whenever one of them does: a part without one is taken for a
    part whose gradient is zero.
    """

    parts: list[Parameter]

    @staticmethod
    def of(parameters: Iterable[Parameter]) -> "EndToEnd":
        parts = [p for p in parameters if p.requires_grad]
        whole = EndToEnd(torch.cat([p.detach().flatten() for p in parts]))
        whole.grad, whole.parts = torch.zeros_like(whole), parts
        sizes = [p.numel() for p in parts]
        places = zip(whole.detach().split(sizes), whole.grad.split(sizes), strict=True)
        for part, (values, gradient) in zip(parts, places, strict=True):
            part.data, part.grad = values.view_as(part), gradient.view_as(part)
        return whole


def joined(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer of parts, ``Optimizer.state_dict()``, as one of the whole."""
    parts = [state["state"][index] for index in sorted(state["state"])]
    if len(parts) < 2:
        return state
    whole = {
        key: torch.cat([part[key].flatten() for part in parts]) if x.ndim else x
        for key, x in parts[0].items()
    }
    groups = [{**group, "params": [0]} for group in state["param_groups"]]
    return {"state": {0: whole}, "param_groups": groups}


def parts_of(parameters: Iterable[Parameter]) -> list[Parameter]:
    """The parameters that gradients come to."""
    parts = [getattr(parameter, "parts", [parameter]) for parameter in parameters]
    return [part for of_one in parts for part in of_one if part.requires_grad]
