"""``tests/sign_flips.py`` takes minutes: here a sample of it, and that the rest can be run."""

import pytest
from conftest import ROOT
from sign_flips import FLIPS, THIRD, Trials

SAMPLE = ("cql, gap", "td3, target", "ppo, actor")  # the cheap ones of three files


@pytest.fixture(scope="module")
def trials():
    with Trials() as trials:
        yield trials


def test_the_line_of_each_flip_is_there_once():
    lost = [
        flip.term
        for flip in FLIPS
        if (ROOT / "offrl" / flip.file).read_text(encoding="utf-8").count(flip.line) != 1
        or flip.flipped == flip.line
        or not (ROOT / flip.tests).exists()
    ]
    assert not lost


@pytest.mark.slow
@pytest.mark.parametrize("term", SAMPLE)
def test_a_flipped_sign_fails_a_test(trials, term):
    (flip,) = [flip for flip in FLIPS if flip.term == term]
    assert not trials.passes(flip)


@pytest.mark.thorough
@pytest.mark.parametrize("flip", FLIPS, ids=lambda flip: flip.term)
def test_every_flipped_sign_fails_a_test(trials, flip):
    """A third of them one that is not thorough."""
    assert not trials.passes(flip, "not thorough" if flip in THIRD else "")
