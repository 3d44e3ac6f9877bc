"""The weights of an algorithm: their moving average, and those that checkpoints hold."""

from collections.abc import Iterable, Mapping
from typing import Any

from offrl.config import EMAConfig
from offrl.lazy import Tensor, torch


class Average:
    """Exponential moving average of the ``weights`` that learn (Polyak and Juditsky, 1992), by
    default with the decay of diffusion policies (Chi et al., 2023, arXiv:2303.04137). It takes the
    weights' place while it is ``shown``."""

    def __init__(
        self,
        weights: "Mapping[str, torch.nn.Parameter]",
        config: EMAConfig,
        keeps_decays: bool = False,
    ):
        self._config = config
        self._keeps_decays = keeps_decays  # on the device, for captured steps
        self._decays: dict[str, Any] = {}  # that of each optimizer there, ``OnDevice``
        learning = {name: p for name, p in weights.items() if p.requires_grad}
        self.weights = learning if config.enabled else {}
        self._averages: dict[str, Tensor] = {}  # none as long as they equal the weights
        self._num_steps: dict[str, int] = {}  # of each optimizer
        self._trained: Mapping[str, Tensor] = {}  # weights that are to be loaded
        self.shown = False

    def follow(self, optimizer: str, parameters: "Iterable[torch.nn.Parameter]") -> None:
        """Move towards the weights, behind a step of the ``optimizer`` of these ``parameters``."""
        if not self._config.enabled:
            return
        from offrl.kernels.optim import parts_of

        self._begin()
        names = self._names(parts_of(parameters))
        weights = [self.weights[name].data for name in names]
        averages = [self._averages[name] for name in names]
        if self._keeps_decays:
            steps = torch._foreach_sub(weights, averages)
            torch._foreach_mul_(steps, 1 - self._tell_decay(optimizer))
            torch._foreach_add_(averages, steps)
            return
        average = torch.optim.swa_utils.get_ema_multi_avg_fn(self._decay(optimizer))
        average(averages, weights, 0)

    def count_step(self, optimizer: str) -> None:
        """Count a step of the optimizer, by which the decay goes."""
        if self._config.enabled:
            self._num_steps[optimizer] = self._num_steps.get(optimizer, 0) + 1

    def tell_decays(self, optimizers: Iterable[str]) -> None:
        """Tell the device the decays of the next steps of optimizers, if it keeps them."""
        if self.weights and self._keeps_decays:
            for optimizer in optimizers:
                self._tell_decay(optimizer)

    def _tell_decay(self, optimizer: str) -> Tensor:
        from offrl.kernels.optim import OnDevice

        if optimizer not in self._decays:
            self._decays[optimizer] = OnDevice(next(iter(self.weights.values())).device)
        return self._decays[optimizer].tell(self._decay(optimizer))

    def _decay(self, optimizer: str) -> float:
        step = self._num_steps.get(optimizer, 0)
        decay, power = self._config.max_decay, self._config.power
        if power is not None and step:
            decay = min(decay, 1 - step**-power)
        return decay if step else 0.0

    def settle(self, parameters: "Iterable[torch.nn.Parameter]") -> None:
        """Replace parameters that no longer learn by their averages, so that other networks learn
        from the weights that act. Averages must not be shown."""
        for name in self._names(parameters) if self._averages else ():
            self.weights[name].data.copy_(self._averages[name])

    def _begin(self) -> None:
        if not self._averages:
            self._averages = {name: p.detach().clone() for name, p in self.weights.items()}

    def _names(self, parameters: "Iterable[torch.nn.Parameter]") -> list[str]:
        own = {id(parameter) for parameter in parameters}
        return [name for name, weight in self.weights.items() if id(weight) in own]

    def show(self, shown: bool) -> None:
        """Let the networks compute with the averages, or with the weights again."""
        if shown != self.shown:
            for name, weight in self._trained.items():
                own = self.weights[name]  # where the average is shown
                self._averages[name] = torch.empty_like(own).copy_(weight)
            self._trained = {}
            for name, average in self._averages.items():
                own = self.weights[name]
                own.data, average.data = average.data, own.data
            self.shown = shown

    def serialize(self) -> dict[str, Any]:
        """Return its part of a checkpoint: ``{"ema": ...}``, or nothing."""
        if not self._config.enabled:
            return {}
        weights = {name: x.detach() for name, x in (self._averages or self.weights).items()}
        return {"ema": {"weights": weights, "num_steps": dict(self._num_steps)}}

    def deserialize(
        self, state: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Load what ``serialize`` returned; without it, begin with the present weights.

        weights: the trained weights, if the networks hold the averages already. The averages are
            shown from here on, and the weights are kept apart until they are asked for.
        """
        stored = state.get("ema")
        if stored is not None and not self._config.enabled:
            raise ValueError(
                "train.ema.enabled: false, but the checkpoint holds averaged weights, which its "
                "policy acts with; set it to true"
            )
        self._averages, self._trained, self._num_steps = {}, {}, {}
        if stored is None:
            return
        self._num_steps = dict(stored["num_steps"])
        if weights is not None:
            self._trained, self.shown = {name: weights[name] for name in self.weights}, True
            return
        self._begin()
        for name, average in self._averages.items():
            average.copy_(stored["weights"][name].detach())


def weights_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a serialized model without the parts that only resuming the training needs."""
    weights = {key: model[key] for key in ("nets", "ema") if key in model}
    parts = {name: weights_of(part) for name, part in model.get("parts", {}).items()}
    return {**weights, "parts": parts} if parts else weights


def to_act(model: Mapping[str, Any]) -> dict[str, Any]:
    """Mark a serialized model so that an algorithm loads only what acting needs: averaged weights
    in place of the trained ones, and no optimizers. The rest is loaded if it learns or is
    serialized after all."""
    if not {"nets", "normalization"} & model.keys():  # a part's networks are in the whole
        model = {"nets": model}
    parts = {name: to_act(part) for name, part in model.get("parts", {}).items()}
    return {**model, "to_act": True, **({"parts": parts} if parts else {})}


def matching_weights(
    algo_name: str, own: Mapping[str, Tensor], state: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the weights of a serialized model or a ``state_dict``, also robomimic's, by the names
    of an algorithm's ``own`` weights. ``ValueError`` unless names and shapes match."""
    weights = state.get("nets", state)
    if weights.keys() != own.keys():
        from offrl.robomimic.checkpoints import upgrade_model

        state = upgrade_model(state)
        weights = state["nets"]
    problems = {
        "missing": [k for k in own if k not in weights],
        "unexpected": [k for k in weights if k not in own],
        "of another shape": [
            f"{k} {list(weights[k].shape)} instead of {list(own[k].shape)}"
            for k in own
            if k in weights and weights[k].shape != own[k].shape
        ],
    }
    found = [f"{what}: {', '.join(keys[:3])}" for what, keys in problems.items() if keys]
    if found:
        raise ValueError(
            f"the weights do not fit this {algo_name} network ({'; '.join(found)}); use the config "
            "that they were trained with"
        )
    return state


def check_start(algo_name: str, stored: str) -> None:
    """Raise ``ValueError`` unless an algorithm may start from a checkpoint of ``stored``."""
    if algo_name != stored:
        raise ValueError(f"a checkpoint of {stored!r}, but {algo_name!r} was asked for (algo_name)")
