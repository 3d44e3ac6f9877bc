"""Parameters that lie end to end move as they do one by one."""

import copy
import pickle

import pytest
import torch

from offrl.algos.shared.optim import clip_gradients
from offrl.kernels.optim import Adam, AdamW, EndToEnd, RMSprop, joined, parts_of

OPTIMIZERS = {"adam": (Adam, torch.optim.Adam), "adamw": (AdamW, torch.optim.AdamW)}
OPTIMIZERS["rmsprop"] = (RMSprop, torch.optim.RMSprop)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_pytorchs(name, decay):
    ours, plain = net(), net()
    direct, usual = OPTIMIZERS[name]
    whole = [EndToEnd.of(ours.parameters())]
    optimizers = (
        direct(whole, lr=0.01, weight_decay=decay),
        usual(plain.parameters(), lr=0.01, weight_decay=decay),
    )
    for step in range(5):
        x = torch.randn(7, 3)
        for one, optimizer in zip((ours, plain), optimizers, strict=True):
            optimizer.zero_grad()
            parameters = optimizer.param_groups[0]["params"]
            (one(x).square().sum() * (step + 1)).backward(inputs=parts_of(parameters))
            clip_gradients(one, parameters, 0.5)
            optimizer.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    together = torch.cat([p.detach().flatten() for p in ours.parameters()])
    assert torch.equal(whole[0].detach(), together)


def test_loaded_weights_are_the_parts():
    ours, other = net(), net()
    with torch.no_grad():
        other[0].weight.fill_(3.0)
    whole = EndToEnd.of(ours.parameters())
    ours.load_state_dict(other.state_dict())
    assert (whole[: 3 * 8] == 3).all()


def test_frozen_parameters_are_left_out():
    ours = net()
    ours[0].weight.requires_grad_(False)
    whole = EndToEnd.of(ours.parameters())
    assert whole.numel() == 8 + 8 * 2 + 2 and len(parts_of([whole])) == 3
    assert len(parts_of(ours.parameters())) == 3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_of_parts_become_that_of_the_whole(name):
    ours, plain = net(), net()
    direct, usual = OPTIMIZERS[name]
    before, whole = usual(plain.parameters()), direct([EndToEnd.of(ours.parameters())])
    plain(torch.randn(7, 3)).sum().backward()
    before.step()
    ours.load_state_dict(plain.state_dict())
    whole.load_state_dict(joined(copy.deepcopy(before.state_dict())))
    for one, optimizer in ((plain, before), (ours, whole)):
        optimizer.zero_grad()
        one(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
    state = whole.state_dict()
    assert joined(state) is state


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_hang_together(copied):
    ours = net()
    both = ours, EndToEnd.of(ours.parameters())
    other, whole = copied(both)
    RMSprop([whole], lr=0.1).zero_grad()
    other(torch.ones(1, 3)).sum().backward()
    assert whole.grad.any() and not both[1].grad.any()
    with torch.no_grad():
        whole.fill_(3.0)
    assert all((p == 3).all() for p in other.parameters())
    assert not any((p == 3).all() for p in ours.parameters())


def test_gradients_that_were_taken_away_come_back():
    ours = net()
    whole = EndToEnd.of(ours.parameters())
    ours.zero_grad()
    whole.zero_grad()
    ours(torch.ones(1, 3)).sum().backward()
    assert whole.grad.any()
    ours.double()
    with pytest.raises(RuntimeError, match="algo_factory"):
        whole.zero_grad()


def test_an_optimizer_that_made_no_step_becomes_one_of_the_whole():
    before = torch.optim.Adam(net().parameters())
    after = Adam([EndToEnd.of(net().parameters())])
    after.load_state_dict(joined(before.state_dict()))
    assert not after.state
