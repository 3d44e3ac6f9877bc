"""Names of earlier versions still lead to what they meant."""

from functools import wraps
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch

from offrl import aliases
from offrl.algos import PolicyAlgo
from offrl.algos.base import Seen
from offrl.models import MLP, Actor
from offrl.specs import with_goal


@pytest.mark.parametrize(("earlier", "now"), aliases.MOVED.items(), ids=aliases.MOVED)
def test_a_module_that_has_moved_is_found_where_it_was(earlier, now):
    assert import_module(earlier) is import_module(now)
    assert import_module(now).__spec__.name == now


# -- policies that are written, and called, in the earlier form ------------------------------------


class Scaled(PolicyAlgo):
    """Acts by ten times the observation, and a state that counts."""

    nets = SimpleNamespace(training=False)

    def __init__(self):  # nothing of it is needed here
        pass

    def act(self, obs, goal=None, state=None, generators=None, scale=10.0):
        return scale * obs["x"][:, -1], (state or 0) + 1


class ExploresMore(Scaled):
    def explore(self, obs, goal=None, state=None, generators=None, num_steps=0):
        return self.act(obs, goal, state, generators, scale=20.0)


class ExploresMoreByPlace(Scaled):
    def explore(self, obs, goal=None, state=None, generators=None, num_steps=0):
        return self.act(obs, goal, state, generators, 20.0)


class Passes(Scaled):
    def act(self, *given):
        return super().act(*given[:4])


def plain(method):
    def call(*given):
        return method(*given)

    return call


def named(method):
    @wraps(method)
    def call(*given):
        return method(*given)

    return call


class Decorated(Scaled):
    @plain
    def act(self, obs, goal, state, generators=None):
        return Scaled.act(self, obs, goal, state, generators)


class NamedAlike(Scaled):
    @named
    def act(self, obs, goal, state, generators=None):
        return Scaled.act(self, obs, goal, state, generators)


class Beside:
    def act(self, obs, goal=None, state=None, generators=None):
        return super().act({"x": obs["x"]}, goal, state, generators)


class WithMixin(Beside, Scaled):
    pass


class Static(Scaled):
    @staticmethod
    def act(obs, goal=None, state=None, generators=None):
        return 10.0 * obs["x"][:, -1], (state or 0) + 1


class OfClass(Scaled):
    @classmethod
    def act(cls, obs, goal=None, state=None, generators=None):
        return 10.0 * obs["x"][:, -1], (state or 0) + 1


class OfOne(Scaled):
    def __init__(self):
        self.act = self.choose

    def choose(self, obs, goal=None, state=None, generators=None):
        return super().act(obs, goal, state, generators)


class Now(ExploresMore):
    def act(self, seen, scale=10.0):
        return super().act(seen, scale=scale)


@pytest.mark.parametrize(
    "kind",
    [
        *(Scaled, ExploresMore, ExploresMoreByPlace, Passes, Decorated, NamedAlike, WithMixin),
        *(Static, OfClass, OfOne, Now),
    ],
)
def test_policies_are_written_and_called_in_either_form(kind):
    algo, obs = kind(), {"x": torch.ones(2, 1, 3)}
    explored = 20.0 if issubclass(kind, (ExploresMore, ExploresMoreByPlace)) else 10.0
    parts = obs, None, 4, None
    for given in ([Seen(*parts)], parts):
        action, state = algo.act(*given)
        assert state == 5 and action.tolist() == [[10.0] * 3] * 2
        action, state = algo.explore(*given)
        assert state == 5 and action.tolist() == [[explored] * 3] * 2


def test_an_encoder_of_ones_own_is_given_the_goal_that_is_among_observations():
    class Joined(torch.nn.Module):
        def forward(self, obs, goal=None):
            return torch.cat([obs["x"], goal["x"][:, None]], dim=-1)

    actor = Actor(Joined(), MLP(2, [4]), torch.nn.Identity())
    obs, goal = {"x": torch.ones(3, 1, 1)}, {"x": torch.zeros(3, 1)}
    assert torch.equal(actor(with_goal(obs, goal))[0], actor(obs, goal)[0])
