import pytest
import torch

from offrl import config_factory
from offrl.models.critics import Critics, DistributionalCritics
from offrl.specs import ObsSpec


@pytest.fixture
def spec():
    modalities = {"obs": {"low_dim": ["place"]}, "goal": {"low_dim": ["place"]}}
    config = config_factory("iql", {"observation": {"modalities": modalities}})
    return ObsSpec.from_config(config.observation, {"place": (3,)})


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Critics, {"num_critics": 3}),
        (Critics, {"num_critics": 2, "layer_norm": True, "value_bounds": [0.0, 1.0]}),
        (DistributionalCritics, {"num_critics": 1, "value_bounds": [0.0, 1.0], "num_outputs": 5}),
    ],
)
def test_the_first_critic_alone_is_the_first_of_all(spec, kind, options):
    torch.manual_seed(0)
    critics = kind(spec, 2, [8, 8], **options)
    for parameter in critics.parameters():  # layer norms start equal
        torch.nn.init.normal_(parameter)
    obs, goal = {"place": torch.randn(4, 1, 3)}, {"place": torch.randn(4, 3)}
    actions = torch.rand(4, 5, 2)
    every = critics(obs, actions, goal)
    assert every.shape == (options["num_critics"], 4, 5)
    torch.testing.assert_close(critics.first(obs, actions, goal), every[0])


def test_each_critic_may_have_actions_of_its_own(spec):
    torch.manual_seed(0)
    critics = Critics(spec, 2, [8, 8], num_critics=3)
    obs, goal = {"place": torch.randn(4, 1, 3)}, {"place": torch.randn(4, 3)}
    actions = torch.rand(3, 4, 5, 2)
    values = critics(obs, actions, goal)
    for i in range(3):
        torch.testing.assert_close(values[i], critics(obs, actions[i], goal)[i])
