"""The site of the pages: it builds without a warning, is searched and read without a network."""

import html
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conftest import GOLDEN, ROOT

from offrl.__main__ import commands
from offrl.algos.base import Algo
from offrl.config import config_factory
from offrl.registry import ALGO_CONFIGS, ALGOS
from offrl.tools import described

sys.path.insert(0, str(ROOT / "docs/_ext"))  # noqa: E402
import config_keys  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
PAGE = (ROOT / "docs/reference/algorithms.md").read_text(encoding="utf-8")


def build(docs, site):
    """Build a site as ``make docs`` does; what ``sphinx-build`` said, and its exit status."""
    pytest.importorskip("sphinx", reason="no Sphinx; pip install 'offrl[docs]'")
    pytest.importorskip("myst_parser", reason="no MyST; pip install 'offrl[docs]'")
    options = ["--quiet", "--nitpicky", "--fail-on-warning", "--keep-going"]
    command = [sys.executable, "-m", "sphinx", *options, "-c", str(ROOT / "docs")]
    folders = ["-d", str(site.with_name("doctrees")), str(docs), str(site)]
    return subprocess.run(
        [*command, *folders],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """That of ``make docs``, which CI calls, too."""
    folder = tmp_path_factory.mktemp("site") / "html"
    done = build(ROOT / "docs", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@contextmanager
def opened(page):
    """A page in Chromium, and the addresses that it asked for."""
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        tab, asked = browser.new_page(), []
        tab.set_default_timeout(10_000)
        tab.on("request", lambda request: asked.append(request.url))
        tab.goto(page.as_uri())
        yield tab, asked
        browser.close()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("word", "page"),
    [("expectile", "reference/algorithms"), ("hdf5_filter_key", "reference/config.html")],
)
def test_the_search_finds_a_word(site, word, page):
    with opened(site / "index.html") as (tab, asked):
        tab.fill("input.sidebar-search", word)
        tab.press("input.sidebar-search", "Enter")
        tab.wait_for_selector("#search-results li a")
        links = [a.get_attribute("href") for a in tab.query_selector_all("#search-results li a")]
        assert any(page in link for link in links), links
        assert all(url.startswith("file://") for url in asked), asked


@pytest.mark.thorough
def test_no_page_asks_a_network_for_anything(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 20
    with opened(pages[0]) as (tab, asked):
        for page in pages:
            tab.goto(page.as_uri())
        assert len(asked) > len(pages)
        assert [url for url in asked if not url.startswith(("file://", "data:"))] == []


@pytest.mark.thorough
def test_every_config_key_is_a_link_target(site):
    common = (site / "reference/config.html").read_text(encoding="utf-8")
    special = (site / "reference/config_algorithms.html").read_text(encoding="utf-8")
    assert 'id="train.data.top_share"' in common and 'id="algo.vf_quantile"' in special
    for name in ALGO_CONFIGS.names():
        for key in config_factory(name).algo.keys():
            ids = [f'id="algo.{key}"', f'id="{name}:algo.{key}"']
            assert any(i in special for i in ids), (name, key)


@pytest.mark.slow
def test_broken_links_fail_the_build_and_are_named(tmp_path):
    broken = {
        "nowhere.md": "[there](nowhere.md)",
        "train.batchsize": "[there](#train.batchsize)",
        "offrl.Trainr": "{py:class}`offrl.Trainr`",
    }
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# A page\n\n" + "\n\n".join(broken.values()) + "\n")
    done = build(docs, tmp_path / "html")
    assert done.returncode != 0
    for line, named in enumerate(broken):
        place = f"index.md:{3 + 2 * line}: "
        assert any(place in said and named in said for said in done.stderr.splitlines()), (
            done.stderr
        )


# -- the table of algorithms ----------------------------------------------------------------------

ROWS = re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| (.*) \|$", PAGE, re.M)


@pytest.mark.thorough
def test_the_page_of_commands_shows_every_example_whole(site):
    page = html.unescape((site / "reference/commands.html").read_text(encoding="utf-8"))
    page = re.sub("<[^>]*>", "", page)
    for name, command in commands().items():
        says, examples = described(command)
        example = re.match("example: (offrl .*?[^.])(?:; |[.] |$)", examples)
        assert example and example[1] in page, name
        assert says in page.replace("’", "'"), name


def test_the_table_has_every_algorithm():
    offrls = {name for name in ALGOS.names() if ALGO_CONFIGS[name].__module__.startswith("offrl.")}
    assert {name for name, _ in ROWS} == offrls
    first, *lines = [line for line in PAGE.splitlines() if line.startswith("| [`")]
    assert "\n".join([first, *lines]) in PAGE, "the table is torn"


@pytest.mark.parametrize(("name", "row"), ROWS, ids=[name for name, _ in ROWS])
def test_a_row_says_what_the_code_says(name, row):
    paper, learns, actions, configs, is_robomimics = row.split(" | ")
    algo: type[Algo] = ALGOS[name](config_factory(name).algo)[0]
    assert actions == ", ".join(algo.ACTIONS)
    assert ("rewards" in learns or "returns" in learns) == bool(
        {"rewards", "returns"} & {*algo.NEEDS}
    )
    assert (is_robomimics == "yes") == (GOLDEN / f"configs/{name}.json").exists()
    module = (ROOT / f"offrl/algos/{name}.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\[arXiv:([\d.]+)\]", paper)) <= set(
        re.findall(r"arXiv:([\d.]+)", module)
    )
    folder = ROOT / "configs"
    shipped = {str(p.relative_to(folder)) for p in folder.rglob("*.json")}
    own = {file for file in shipped if f'"algo_name": "{name}"' in (folder / file).read_text()}
    assert set(re.findall(r"`((?:online/)?\w+\.json)`", configs)) == own


# -- the reference of config keys -----------------------------------------------------------------


def origin(path):
    keys = config_keys.common_keys(path.partition(".")[0])
    return next(key for key in keys if key.path == path).origin()


def test_whose_key_it_is_was_looked_up():
    assert origin("train.batch_size") == "robomimic's key"
    assert origin("train.mask_padded_steps") == "offrl's own key"
    assert origin("experiment.rollout.batched") == "a key of some versions of robomimic"
    assert origin("train.data.path") == "robomimic's key"
    assert origin("train.data.weight") is None  # no recorded config has a list with one
    for key in config_keys.algorithm_keys()["edac"].values():
        assert key.origin(("edac",)) != "robomimic's key", key.path


def test_a_key_without_a_description_ends_the_build():
    with pytest.raises(ValueError, match=r"algo\.new_key"):
        _ = config_keys.Key("algo.new_key", {"type": "integer"}, False).description


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ({"type": "integer", "minimum": 1}, "a whole number from 1 on"),
        ({"type": "number", "minimum": 0, "maximum": 1}, "a number from 0 to 1"),
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "a number from 0 and below 1"),
        ({"enum": ["a", "b"]}, '"a" or "b"'),
        ({"const": True}, "always true"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "text or null"),
        ({"type": "array", "items": {"type": "integer"}}, "a list of whole numbers"),
        ({"type": "object", "additionalProperties": True}, "a map"),
    ],
    ids=str,
)
def test_types_are_said_in_words(node, words):
    assert config_keys.in_words(node) == words
