"""Checks that only updates change an algorithm's state, also with layers that behave differently
in training and in evaluation."""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from offrl.algos import Algo, PolicyAlgo
from offrl.registry import CORES
from offrl.tree import leaves, map_leaves

if TYPE_CHECKING:
    from offrl.testing import AlgoCase

NUM_ROWS = 5
TWO_MODES = {"encoder": {"low_dim": {"core_class": "two_modes"}}}


@CORES.register("two_modes")
class TwoModes(nn.Sequential):
    """A core whose features differ between training mode and evaluation mode."""

    def __init__(self, input_shape: tuple[int], **options: Any):
        super().__init__(nn.BatchNorm1d(*input_shape), nn.Dropout(0.2))
        (self.output_dim,) = input_shape


def preparing_and_validating_change_no_state(case: "AlgoCase") -> None:
    """Check this in training mode and in evaluation mode, in which weights are averaged."""
    algo, batches = case.seeing(TWO_MODES).make({"ema": {"power": None, "max_decay": 0.5}})
    for _ in range(2):
        before = _state(algo)
        algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
        changed = _changed(algo, before)
        assert any(key.startswith("nets.") for key in changed), "train_on_batch changed no weight"
        before = _state(algo)
        algo.process_batch_for_training(next(batches))
        _check(algo, before, "process_batch_for_training")
        algo.set_eval()
        before = _state(algo)
        batch = algo.process_batch_for_training(next(batches))
        info = algo.train_on_batch(batch, epoch=1, validate=True)
        assert "Loss" in algo.log_info(info)
        _check(algo, before, "process_batch_for_training or train_on_batch(validate=True)")
        algo.set_train()


def acting_to_learn_has_no_training_mode(case: "AlgoCase") -> None:
    """Check that an action depends on its own row alone, and that choosing it changes nothing."""
    algo, batches = case.seeing(TWO_MODES).make()
    if not isinstance(algo, PolicyAlgo) or not callable(getattr(algo, "act", None)):
        return
    algo.train_on_batch(algo.process_batch_for_training(next(batches)), epoch=1)
    obs = {key: torch.randn(NUM_ROWS, 1, n) for key, n in (("position", 3), ("speed", 2))}
    goal = {key: x[:, 0] for key, x in obs.items()} if algo.obs_spec.keys("goal") else None
    algo.set_train()
    before = _state(algo)

    def choose(rows: slice, *num_steps: int) -> Tensor:
        seen = (map_leaves(lambda x: x[rows], tree) for tree in (obs, goal))
        seeded = [torch.Generator().manual_seed(i) for i in range(NUM_ROWS)[rows]]
        with torch.no_grad():
            choice: Any = algo.explore if num_steps else algo.act
            return choice(*seen, None, seeded, *num_steps)[0]

    for num_steps in ((0,), (10**9,), ()):  # explores at the start and the end; acts
        what = "explore" if num_steps else "act"
        together = choose(slice(None), *num_steps)
        apart = torch.cat([choose(slice(2), *num_steps), choose(slice(2, None), *num_steps)])
        assert torch.allclose(together, apart, rtol=0, atol=1e-5), (
            f"{what}: an action depends on the rows beside its own: {together} and {apart}"
        )
        _check(algo, before, what)


def _state(algo: Algo) -> dict[str, Any]:
    """Copy what a checkpoint holds, the weights that are shown, and the algorithm's counters."""
    own = {key: x for key, x in vars(algo).items() if isinstance(x, (int, float, Tensor))}
    shown = dict(algo.nets.state_dict())
    return copy.deepcopy(leaves({**algo.serialize(), "shown": shown, "attributes": own}))


def _changed(algo: Algo, before: dict[str, Any]) -> list[str]:
    after = _state(algo)

    def is_same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b

    return [key for key in before if not is_same(before[key], after.get(key))]


def _check(algo: Algo, before: dict[str, Any], what: str) -> None:
    changed = _changed(algo, before)
    assert not changed, f"{what} changed {', '.join(changed[:3])}; only updates change state"
