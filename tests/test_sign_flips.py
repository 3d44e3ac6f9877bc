"""``tests/sign_flips.py`` takes minutes; that it can be run at all is tested here."""

import pytest
from conftest import ROOT
from sign_flips import FLIPS


@pytest.mark.parametrize("flip", FLIPS, ids=lambda flip: flip.term)
def test_the_line_of_a_flip_is_there_once(flip):
    text = (ROOT / "offrl" / flip.file).read_text(encoding="utf-8")
    assert text.count(flip.line) == 1 and flip.flipped != flip.line
    assert (ROOT / flip.tests).exists()
