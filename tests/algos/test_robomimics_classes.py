"""Classes by the names that robomimic has for them."""

import pytest

from offrl import algo_factory, config_factory
from offrl.registry import ALGOS

ROBOMIMICS = {  # classes, and what each of them is besides
    "BC": [],
    "BC_Gaussian": ["gaussian"],
    "BC_GMM": ["gmm"],
    "BC_VAE": ["vae"],
    "BC_RNN": ["rnn"],
    "BC_RNN_GMM": ["rnn", "gmm"],
    "BC_Transformer": ["transformer"],
    "BC_Transformer_GMM": ["transformer", "gmm"],
}
NEAREST = {  # of what robomimic lacks
    ("vae", "rnn"): "BC_VAE",
    ("vae", "transformer"): "BC_VAE",
    ("gaussian", "rnn"): "BC_RNN",
    ("gaussian", "transformer"): "BC_Transformer",
}


def bc_with(switches):
    content = {
        "algo": {switch: {"enabled": True} for switch in switches},
        "observation": {"modalities": {"obs": {"low_dim": ["position"]}}},
        "train": {"frame_stack": 10 if "transformer" in switches else 1},
    }
    config = config_factory("bc", content)
    return algo_factory("bc", config, {"position": [3]}, 2, "cpu")


@pytest.mark.parametrize(
    ("name", "switches"), [*ROBOMIMICS.items(), *((v, k) for k, v in NEAREST.items())]
)
def test_a_cloned_policy_has_the_class_name_that_robomimic_gives_it(name, switches):
    assert type(bc_with(switches)).__name__ == name


def test_robomimics_classes_are_found_where_it_has_them():
    import offrl.algos
    from offrl.algos import BC, BCQ, CQL, IQL, TD3_BC, BC_Gaussian, BCQ_Distributional, bc

    for name in ROBOMIMICS:
        assert getattr(offrl.algos, name) is getattr(bc, name) and issubclass(getattr(bc, name), BC)
    assert issubclass(bc.BC_GMM, BC_Gaussian) and issubclass(bc.BC_RNN_GMM, bc.BC_RNN)
    assert issubclass(bc.BC_Transformer_GMM, bc.BC_Transformer)
    assert not issubclass(bc.BC_VAE, BC_Gaussian) and issubclass(BCQ_Distributional, BCQ)
    for name, algo in {"bcq": BCQ, "cql": CQL, "iql": IQL, "td3_bc": TD3_BC}.items():
        assert ALGOS[name](config_factory(name).algo)[0] is algo
    with pytest.raises(AttributeError, match="'BC_Diffusion'"):
        offrl.algos.BC_Diffusion  # noqa: B018
