"""The page of ``offrl report`` in a browser: Chromium, opened from a file, without a network."""

import pytest
from test_report import GOOD_AND_BAD, Outcome, study
from test_view_browser import CHROMIUM, NARROW, WIDE, browser  # noqa: F401 (a fixture)

from offrl.reports.report import write_report

pytest.importorskip("rliable")
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a report, which needs nothing beside it."""
    folder = tmp_path_factory.mktemp("report")
    lost = Outcome("bad", "Can", 9, "failed", "<script>alert(1)</script>")
    write_report([*study(GOOD_AND_BAD), lost], folder, "Cans")
    for other in folder.glob("*"):
        if other.name != "report.html":
            other.unlink()
    return folder / "report.html"


@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_the_page_shows_tables_and_pictures_without_a_network(browser, report, tmp_path, size):  # noqa: F811
    complaints = []
    viewport = {"width": size[0], "height": size[1]}
    context = browser.new_context(viewport=viewport, offline=True)
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto(report.as_uri())
    assert page.title() == "Cans"
    headings = page.locator("h2").all_text_contents()
    assert headings[0] == "What is missing" and "Final scores" in headings
    assert page.locator("td", has_text="<script>alert(1)</script>").count() == 1
    pictures = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth])")
    assert len(pictures) == 6 and all(done and width > 300 for done, width in pictures)
    # Nothing is wider than the screen; tables scroll by themselves.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert complaints == []
    context.close()
