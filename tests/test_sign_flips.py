"""``tests/sign_flips.py`` takes minutes: here a sample of it, and that the rest can be run."""

import pytest
from conftest import ROOT
from sign_flips import FLIPS, passes

SAMPLE = ("edac, similarity", "td3_bc, cloning", "cql, gap")


@pytest.mark.parametrize("flip", FLIPS, ids=lambda flip: flip.term)
def test_the_line_of_a_flip_is_there_once(flip):
    text = (ROOT / "offrl" / flip.file).read_text(encoding="utf-8")
    assert text.count(flip.line) == 1 and flip.flipped != flip.line
    assert (ROOT / flip.tests).exists()


@pytest.mark.slow
@pytest.mark.parametrize("term", SAMPLE)
def test_a_flipped_sign_fails_a_test(term):
    (flip,) = [flip for flip in FLIPS if flip.term == term]
    assert not passes(flip)


@pytest.mark.thorough
@pytest.mark.parametrize("flip", FLIPS, ids=lambda flip: flip.term)
def test_every_flipped_sign_fails_a_test(flip):
    assert not passes(flip)
