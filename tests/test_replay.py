"""Random numbers recorded in every form that torch and robomimic have for them."""

import pytest
import torch
from replay import Draw, Replay
from torch import distributions as D
from torch.nn import functional as F

from offrl.models.heads import EVAL_STD, Gaussian, GaussianMixture
from offrl.models.vae import CategoricalPrior


def mixture(std=0.5):
    mean, logits = torch.randn(2, 3, 4, 5).tanh(), torch.randn(2, 3, 4).log_softmax(-1)
    return GaussianMixture(mean, torch.full_like(mean, std), logits)


@pytest.mark.parametrize("std", [0.5, EVAL_STD])
@pytest.mark.parametrize("source", ["torch.normal", ""])
def test_a_mixtures_sample_of_torch_is_replayed(std, source):
    torch.manual_seed(0)
    pi = mixture(std)
    index = D.Categorical(logits=pi.logits).sample()
    of_all = torch.normal(pi.mean, pi.std)
    torch.manual_seed(0)
    mixture(std)  # the same numbers once more
    components = D.Independent(D.Normal(pi.mean, pi.std), 1)
    theirs = D.MixtureSameFamily(D.Categorical(logits=pi.logits), components).sample()
    # Rows are recorded in robomimic's arrangement, [B * T, ...].
    draws = [
        Draw.recorded(index.flatten()[:, None], "torch.multinomial"),
        Draw.recorded(of_all.flatten(0, 1), source),
    ]
    with Replay(draws):
        torch.testing.assert_close(pi.sample(), theirs)


@pytest.mark.parametrize("num_components", [1, 4])
def test_noise_of_the_chosen_or_of_all_components(num_components):
    pi, index = mixture(), torch.randint(4, (2, 3))
    noise = torch.randn(2, 3, num_components, 5)
    draws = [Draw.recorded(index), Draw.recorded(noise, "torch.randn")]
    with Replay(draws):
        sample = pi.sample()
    mean, std, noise = (
        torch.stack(
            [x[b, t, min(int(index[b, t]), x.shape[2] - 1)] for b in (0, 1) for t in range(3)]
        )
        for x in (pi.mean, pi.std, noise)
    )
    torch.testing.assert_close(sample.flatten(0, 1), mean + std * noise)


def test_a_gaussians_noise_or_samples():
    pi, noise = Gaussian(torch.randn(2, 1, 5), torch.rand(2, 1, 5)), torch.randn(2, 5)
    expected = pi.mean + pi.std * noise[:, None]
    recorded = [(noise, "Tensor.normal_", ""), (noise, "torch.normal", "standard normal [B,A]")]
    for numbers in (*recorded, (expected[:, 0], "torch.normal", "")):
        with Replay([Draw.recorded(*numbers)]):
            torch.testing.assert_close(pi.sample(), expected)


def test_gumbel_noise():
    exponential, logits = torch.rand(3, 2, 4).add(0.1), torch.randn(3, 2, 4)
    with Replay([Draw.recorded(exponential, "Tensor.exponential_")]):
        relaxed = F.gumbel_softmax(logits, tau=0.7)
    torch.testing.assert_close(relaxed, ((logits - exponential.log()) / 0.7).softmax(-1))


def test_an_index_by_a_uniform_number():
    mean, weights = torch.tensor([[[[0.0], [5.0]]]]), torch.tensor([[[0.3, 0.7]]])
    pi = GaussianMixture(mean, torch.ones_like(mean), weights.log())
    for uniform, expected in ((0.2, 0.0), (0.4, 5.0)):
        draws = [Draw.recorded(torch.tensor([uniform])), Draw.recorded(torch.zeros(1, 1), "randn")]
        with Replay(draws):
            assert pi.sample() == expected


def test_robomimics_single_latent_takes_all_classes_in_turn():
    prior = CategoricalPrior({"logit": (1, 3)}, learn=False, net=None)
    with Replay([]):
        z = prior.sample({}, torch.empty(2, 4, 3), None)
    assert z.flatten(0, 1).argmax(-1).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


def test_numbers_that_nobody_uses_are_passed_over_and_missing_ones_are_not():
    wanted = torch.randn(4, 3)
    draws = [Draw.recorded(x, "torch.randn") for x in (torch.randn(6, 2), wanted, torch.randn(9))]
    with Replay(draws):
        assert torch.equal(torch.randn(4, 1, 3), wanted[:, None])
        with pytest.raises(AssertionError, match=r"\(4, 3\)"):
            torch.randn(4, 3)
        with pytest.raises(AssertionError, match=r"\(4,\)"):
            torch.rand(4)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (torch.tensor([0, 2, 1]), "index"),
        (torch.tensor([0.1, 0.9]), "uniform"),
        (torch.tensor([0.1, 1.9]), "exponential"),
        (torch.tensor([0.1, -1.9]), "normal"),
    ],
)
def test_numbers_of_unknown_source_are_known_by_their_values(values, kind):
    assert Draw.recorded(values).kind == kind


def test_uniform_numbers_between_minus_one_and_one():
    draw = Draw.recorded(torch.tensor([-1.0, 0.0, 0.5]), "Tensor.uniform_")
    assert draw.kind == "uniform" and draw.values.tolist() == [0.0, 0.5, 0.75]
