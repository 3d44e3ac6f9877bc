"""Networks of a user's own in the place of an algorithm's."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from offrl.online import Agent, Model


def config(algo_name, env="CartPole-v1", **train):
    online = {"collect_steps": 32, "random_steps": 32}
    train = {"num_steps": 96, "batch_size": 16, "online": online, **train}
    return {"algo_name": algo_name, "experiment": {"env": env}, "train": train}


class ModelName(nn.Module):
    def __init__(self, input_shape, state_size, action_size, device):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(input_shape[0] * state_size, 8), nn.Tanh())
        self.action, self.worth = nn.Linear(8, action_size), nn.Linear(8, 1)
        self.to(device)

    def forward(self, x):
        return self.action(self.hidden(x))


class Pair(ModelName):
    def forward(self, x):
        return super().forward(x), self.worth(self.hidden(x))


class Worth(ModelName):
    def forward(self, x):
        return self.worth(self.hidden(x))


class InRole(Model):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def value(self, x, a=None):
        return self.layer(x)


PLACES = [
    (config("ppo"), ModelName),
    (config("impala"), ModelName((4,), 1, 2, "cpu")),
    (config("dqn"), ModelName),
    (config("dqn", frame_stack=3), ModelName),
    (config("a2c"), Worth),
    (config("dqn"), InRole()),
    (config("td3", "Pendulum-v1"), ModelName),
    (config("ppo", "Pendulum-v1"), ModelName((3,), 1, 1, "cpu")),
]


@pytest.mark.parametrize("said, model", PLACES)
def test_a_network_of_ones_own_learns(said, model, tmp_path):
    agent = Agent(said, model=model, log_level="warning")
    own = agent._session._network
    assert any(part is own for part in agent.alg.nets.modules())
    assert own.training == agent.alg.nets.training
    before = {name: x.detach().clone() for name, x in own.named_parameters()}
    agent.train(model_dest=tmp_path)
    unused = {ModelName: "worth", Worth: "action"}.get(type(own), "none")
    for name, x in agent._session._network.named_parameters():
        assert torch.equal(x, before[name]) == name.startswith(unused), name
    (final,) = tmp_path.glob("agent-final-*.pth")
    again = Agent(said, model=copy.deepcopy(own), model_file=final, log_level="warning")
    state = next(iter(torch.randn(1, *x) for x in agent.alg.obs_spec.shapes("obs").values()))[0]
    assert (agent.predict(state.numpy()) == again.predict(state.numpy())).all()


def test_what_it_gives_is_what_acts():
    own = ModelName((4,), 1, 2, "cpu")
    agent = Agent(config("ppo"), model=own, log_level="warning")
    obs = torch.randn(5, 4)
    torch.testing.assert_close(torch.as_tensor(agent.predict(obs.numpy())), own(obs).argmax(1))
    values = Agent(config("dqn"), model=own, log_level="warning").alg.model.value(obs)
    torch.testing.assert_close(values[:, 0], own(obs).amax(1))


class Restless(ModelName):
    """Writes to what it is given."""

    def forward(self, x):
        return super().forward(x.mul_(2))


def test_what_a_network_is_given_is_its_own():
    own = Restless((4,), 1, 2, "cpu")
    agent = Agent(config("ppo"), model=own, log_level="warning")
    obs = np.ones((3, 4), np.float32)
    assert (agent.predict(obs) == own(torch.full((3, 4), 1.0)).argmax(1).numpy()).all()
    assert (obs == 1).all()


class NoForward(nn.Module):
    def __init__(self, hidden):
        super().__init__()


@pytest.mark.parametrize(
    "said, model, says",
    [
        (config("ppo"), nn.Linear(4, 7), r"Linear .*ppo.*2 actions.*\[2, 7\].*own_network"),
        (config("ppo"), nn.Linear(5, 2), "Linear .*ppo.*5x2.*own_network"),
        (config("sac", "Pendulum-v1"), nn.Linear(3, 1), "Linear .*sac.*own_network"),
        (config("dqn"), Pair((4,), 1, 2, "cpu"), "Pair .*dqn.*tuple.*own_network"),
        (config("dqn") | {"algo": {"dueling": True}}, ModelName, "ModelName .*dqn.*own_network"),
        (config("ppo"), nn.Linear(4, 2).requires_grad_(False), "Linear .*no weights.*own_network"),
        (config("dqn"), nn.Flatten(), "Flatten .*no weights.*own_network"),
        (config("ppo"), NoForward(1), "NoForward .*forward.*own_network"),
        (config("ppo"), NoForward, "NoForward .*made with"),
        (config("ppo"), dict, "own_network"),
        (config("ppo"), 3, "model: int .*own_network"),
    ],
)
def test_a_network_that_fits_nowhere_is_one_line(said, model, says):
    with pytest.raises(ValueError, match=says) as error:
        Agent(said, model=model, log_level="warning")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("algo_name", ["ppo", "a2c", "impala", "reinforce"])
def test_values_of_states_do_not_mind_actions(algo_name):
    model = Agent(config(algo_name), log_level="warning").alg.model
    obs = torch.randn(3, 4)
    with pytest.warns(UserWarning, match=f"value: {algo_name} values states"):
        values = model.value(obs, torch.zeros(3, dtype=torch.long))
    assert torch.equal(values, model.value(obs))
