"""``check_algo`` finds a flipped sign of every loss that is optimised alone."""

import pytest
from test_conformance import narrow

from offrl import config_factory
from offrl.registry import ALGOS
from offrl.testing import AlgoCase
from offrl.testing.learning import it_learns_what_is_right

LOSSES = {"bc": ["policy"], "iql": ["actor", "critic", "vf"]}
LOSSES |= {"dqn": ["critic"], "td3_bc": ["actor", "critic"], "gl": ["goal_network"]}
MADE = ("bc", "iql")  # by make test
MORE = {"gl": {"vae": {"enabled": False}, "subgoal_horizon": 2}}


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        pytest.param(name, loss, marks=pytest.mark.slow if name in MADE else pytest.mark.thorough)
        for name in LOSSES
        for loss in LOSSES[name]
    ],
)
def test_a_flipped_sign_is_found(tmp_path, monkeypatch, name, loss):
    own = narrow(config_factory(name).algo) | MORE.get(name, {})
    kind, _ = ALGOS[name](config_factory(name, {"algo": own}).algo)
    optimize = kind.optimize

    def flipped(self, net, value, *rest, **options):
        return optimize(self, net, -value if net == loss else value, *rest, **options)

    case = AlgoCase(name, {"algo": own}, tmp_path)
    it_learns_what_is_right(case)
    monkeypatch.setattr(kind, "optimize", flipped)
    with pytest.raises(AssertionError, match="sign of a loss"):
        it_learns_what_is_right(case)
