"""The drawings in the docs are those of the present code and results."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest
from conftest import ROOT
from test_layers import LAYERS

SCRIPTS, IMAGES = ROOT / "docs/drawings", ROOT / "docs/images"
DRAWN = [path.name for path in sorted(IMAGES.glob("*.svg"))]


def words(path):
    """All text, in its order; where it is depends on matplotlib's version."""
    text = "{http://www.w3.org/2000/svg}text"
    return [element.text for element in ElementTree.parse(path).iter(text)]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("drawings")
    subprocess.run([sys.executable, SCRIPTS, folder], check=True, cwd=ROOT)
    return folder


@pytest.mark.slow
def test_all_drawings_are_there(drawn):
    assert sorted(path.name for path in drawn.iterdir()) == DRAWN and DRAWN


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_drawing_says_what_its_script_does(name, drawn):
    now = words(drawn / name)
    assert now and words(IMAGES / name) == now, "`make drawings` draws them anew"


def test_the_architecture_has_every_package_in_its_layer(monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(SCRIPTS)
    from architecture import LAYERS as drawn

    assert sorted(part.name for layer in drawn for part in layer) == sorted(
        name for name in LAYERS if name not in ("rollout", "__main__")
    )
    numbers = [{LAYERS[part.name] for part in layer} for layer in reversed(drawn)]
    assert all(len(layer) == 1 for layer in numbers)
    order = [number for layer in numbers for number in layer]
    assert order == sorted(set(order))


@pytest.mark.parametrize("name", DRAWN)
def test_text_stays_text_in_any_font_without_a_ground(name):
    text = (IMAGES / name).read_text(encoding="utf-8")
    assert "font-family: sans-serif" in text and "DejaVu" not in text
    assert "<dc:date>" not in text and 'style="fill: #ffffff"' not in text
