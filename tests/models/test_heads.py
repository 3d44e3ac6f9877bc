"""Densities and samples against torch.distributions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as D

from offrl.models.heads import (
    EVAL_STD,
    Categorical,
    Deterministic,
    FreeGaussianHead,
    Gaussian,
    GaussianHead,
    GaussianMixture,
    GMMHead,
    TanhGaussian,
    TanhMixture,
)


def mixture(batch=3, time=2, modes=4, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    logits = draw(batch, time, modes).log_softmax(-1)
    return GaussianMixture(
        draw(batch, time, modes, dim), draw(batch, time, modes, dim).exp(), logits
    )


def as_torch(pi):
    components = D.Independent(D.Normal(pi.mean, pi.std), 1)
    return D.MixtureSameFamily(D.Categorical(logits=pi.logits), components)


@given(seed=st.integers(0, 1000))
def test_log_prob_is_the_density(seed):
    pi = mixture(seed=seed)
    actions = torch.randn(3, 2, 5)
    torch.testing.assert_close(pi.log_prob(actions), as_torch(pi).log_prob(actions))
    gaussian = Gaussian(pi.mean[..., 0, :], pi.std[..., 0, :])
    expected = D.Independent(D.Normal(gaussian.mean, gaussian.std), 1).log_prob(actions)
    torch.testing.assert_close(gaussian.log_prob(actions), expected)


def test_samples_have_the_distributions_moments():
    torch.manual_seed(0)
    pi = mixture(batch=1, time=1, modes=3, dim=2)
    many = GaussianMixture(*(x.expand(40000, *x.shape[1:]) for x in (pi.mean, pi.std, pi.logits)))
    samples, expected = many.sample()[:, 0], as_torch(pi)
    torch.testing.assert_close(samples.mean(0), expected.mean[0, 0], atol=0.05, rtol=0)
    torch.testing.assert_close(samples.var(0), expected.variance[0, 0], atol=0.1, rtol=0.05)


def test_categorical_probabilities_and_samples():
    torch.manual_seed(0)
    pi = Categorical(torch.tensor([0.0, 1.0, -1.0]).expand(40000, 1, 3))
    theirs = D.OneHotCategorical(logits=pi.logits)
    samples = pi.sample()
    assert (samples.sum(-1) == 1).all() and samples.shape == (40000, 1, 3)
    torch.testing.assert_close(pi.log_prob(samples), theirs.log_prob(samples))
    torch.testing.assert_close(samples.mean(0), theirs.probs[0], atol=0.01, rtol=0)
    likeliest = torch.tensor([0.0, 1.0, 0.0]).expand(40000, 1, 3)
    assert torch.equal(pi.mode(), likeliest) and torch.equal(pi.low_noise().sample(), likeliest)
    alone = Categorical(pi.logits[:1]).sample([torch.Generator().manual_seed(3)])
    both = Categorical(pi.logits[:2]).sample([torch.Generator().manual_seed(i) for i in (9, 3)])
    assert torch.equal(both[1], alone[0])


def test_a_rows_noise_is_its_own_generators():
    pi = mixture(batch=2).at(-1)
    seeds = lambda *s: [torch.Generator().manual_seed(i) for i in s]  # noqa: E731
    both = pi.sample(seeds(1, 2))
    swapped = GaussianMixture(*(x.flip(0) for x in (pi.mean, pi.std, pi.logits)))
    torch.testing.assert_close(swapped.sample(seeds(2, 1)).flip(0), both)
    state = torch.get_rng_state()
    pi.sample([None, *seeds(1)])
    assert torch.equal(torch.get_rng_state(), state)


def test_low_noise_of_a_mixture_is_close_to_the_mean_of_a_component():
    pi = mixture()
    sample = pi.low_noise().sample()
    distance = (sample[..., None, :] - pi.mean).abs().amax(-1).amin(-1)
    assert distance.max() < 6 * EVAL_STD


def test_without_noise_a_gaussian_is_its_mean():
    mean, std = torch.randn(3, 2, 5), torch.rand(3, 2, 5)
    for pi in (Gaussian(mean, std), TanhGaussian(mean, std), Deterministic(mean)):
        assert torch.equal(pi.low_noise().sample(), pi.mode())
    assert torch.equal(TanhGaussian(mean, std).low_noise().sample(), mean.tanh())


@pytest.mark.parametrize(("activation", "start"), [("softplus", 0.3), ("exp", 1.0)])
def test_a_gaussians_std_starts_where_robomimics_does_and_stays_in_bounds(activation, start):
    head = GaussianHead(4, 2, init_std=0.3, min_std=0.05, std_activation=activation)
    with torch.no_grad():
        head.scale.weight.zero_()
        head.scale.bias.zero_()
        torch.testing.assert_close(head(torch.randn(3, 1, 4)).std, torch.full((3, 1, 2), start))
        head.scale.bias.fill_(-50.0)
        assert (head(torch.randn(3, 1, 4)).std == 0.05).all()
        head.scale.bias.fill_(50.0)
        assert (head(torch.randn(3, 1, 4)).std == 7.5).all()


def test_a_fixed_std_is_not_learned():
    head = GaussianHead(4, 2, init_std=0.3, fixed_std=True)
    pi = head(torch.randn(3, 1, 4))
    assert (pi.std == 0.3).all()
    pi.log_prob(torch.zeros(3, 1, 2)).sum().backward()
    assert head.mean.weight.grad is not None
    assert head.scale.weight.grad is None  # there as in robomimic's weights, and not used


def test_mixture_weights_are_normalised():
    pi = GMMHead(4, 2, num_modes=6)(torch.randn(3, 2, 4))
    torch.testing.assert_close(pi.logits.exp().sum(-1), torch.ones(3, 2))
    assert pi.mean.shape == pi.std.shape == (3, 2, 6, 2)


def test_a_tanh_gaussian_has_the_density_of_its_samples():
    torch.manual_seed(0)
    mean, std = torch.randn(1, 1, 2), torch.rand(1, 1, 2) + 0.2
    ours = TanhGaussian(mean, std)
    theirs = D.TransformedDistribution(D.Normal(mean, std), D.TanhTransform(cache_size=1))
    samples = theirs.sample((100,))[:, 0]
    torch.testing.assert_close(
        ours.log_prob(samples),
        theirs.log_prob(samples[:, None]).sum(-1)[:, 0],
        rtol=1e-3,
        atol=1e-3,
    )
    assert torch.isfinite(ours.log_prob(torch.ones(1, 1, 2))).all()
    assert (ours.sample().abs() <= 1).all() and torch.equal(ours.mode(), mean.tanh())


def test_a_tanh_mixture_has_the_density_of_its_samples():
    pi = mixture()
    ours = TanhMixture(pi.mean, pi.std, pi.logits)
    parts = D.Independent(D.Normal(pi.mean, pi.std), 1)
    before = D.MixtureSameFamily(D.Categorical(logits=pi.logits), parts)
    actions = torch.empty(3, 2, 5).uniform_(-0.9, 0.9)
    slope = torch.log1p(-actions.square()).sum(-1)
    expected = before.log_prob(actions.atanh()) - slope
    torch.testing.assert_close(ours.log_prob(actions), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(ours.mode(), pi.mode().tanh()) and (ours.sample().abs() <= 1).all()
    assert isinstance(ours.low_noise(), TanhMixture)
    head = GMMHead(4, 2, use_tanh=True)
    with torch.no_grad():
        head.mean.bias.fill_(3.0)
        assert (head(torch.zeros(1, 1, 4)).mean == 3).all()  # only the whole is squashed


def test_entropies():
    torch.manual_seed(0)
    mean, std, logits = torch.randn(3, 2, 4), torch.rand(3, 2, 4) + 0.1, torch.randn(3, 2, 5)
    expected = D.Independent(D.Normal(mean, std), 1).entropy()
    torch.testing.assert_close(Gaussian(mean, std).entropy(), expected)
    expected = D.Categorical(logits=logits).entropy()
    torch.testing.assert_close(Categorical(logits).entropy(), expected)
    with pytest.raises(NotImplementedError, match="TanhGaussian"):
        TanhGaussian(mean, std).entropy()


def test_a_free_gaussian_has_no_bounds_and_one_std():
    head = FreeGaussianHead(6, 2, log_std_init=-1.0)
    pi = head(100 * torch.randn(50, 1, 6))
    assert pi.mean.abs().max() > 5
    torch.testing.assert_close(pi.std, torch.tensor(-1.0).exp().expand(50, 1, 2))
    pi.entropy().sum().backward()
    torch.testing.assert_close(head.log_std.grad, torch.full((2,), 50.0))
