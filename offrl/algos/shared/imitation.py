"""The base of algorithms that compare demonstrations with steps of their own."""

from collections.abc import Callable

from offrl.algos.shared.algo import Algo
from offrl.lazy import Tensor


class Imitator(Algo):
    """Learns while it acts, and from demonstrations (``train.data``) to which the trainer gives it
    access: off-policy in the mix of each batch, where ``is_demo`` ``[B, 1]`` says which these are,
    on-policy as ``demos`` of each round, a batch of as many recorded steps as there are rows."""

    NEEDS_DEMOS = True

    def inspect_data(self, values: Callable[..., Tensor]) -> None:
        name = self.global_config.algo_name
        raise ValueError(
            f"train.num_steps: {name} compares demonstrations with steps of its own; set it to the "
            "number of these, or clone the demonstrations with bc"
        )
