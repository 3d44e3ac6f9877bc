"""The page of ``offrl view`` in a browser: Chromium, opened from files, without a network."""

import io
import json
import os
import shutil
import time
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import ROOT, write_demos
from PIL import Image
from test_view import EVIL, make_run, record, view, write_hostile

from offrl.data.writer import DemoWriter
from offrl.envs.rendering import working_backend

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
WIDE, NARROW = (1400, 900), (390, 800)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")

FRAMES = 40
LIGHT = 6  # of each frame more than of the one before


@pytest.fixture(scope="module")
def shop(tmp_path_factory, trained_run):
    """A page of Lift's demonstrations, of some with images, of a real run and another one."""
    folder = tmp_path_factory.mktemp("shop")
    runs = trained_run, make_run(folder / "two")
    data = [ROOT / f"datasets/lift/{name}.hdf5" for name in ("low_dim", "mixed")]
    data.append(folder / "filmed.hdf5")
    light = LIGHT * np.arange(FRAMES, dtype=np.uint8).reshape(-1, 1, 1, 1)
    images = np.broadcast_to(light, (FRAMES, 64, 64, 3))
    with DemoWriter(data[-1]) as writer:
        for _ in range(2):
            writer.write({"actions": np.zeros((FRAMES, 2)), "obs/camera": images})
    assert view(*data, *runs, "--output", folder / "page") == 0
    return folder / "page"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright")
    with playwright.sync_playwright() as driver:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        browser.close()


@contextmanager
def opened(browser, folder, place="", size=WIDE, scheme="light"):
    """The page, which may neither complain nor ask a network."""
    complaints = []
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.set_default_timeout(10_000)
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"failed: {request.url}"))
    page.on(
        "request",
        lambda request: (
            None
            if request.url.startswith(f"file://{folder}/") or request.url == "data:,"
            else complaints.append(request.url)
        ),
    )
    page.goto(f"file://{folder}/index.html{place}")
    try:
        yield page
        assert page.evaluate("window.evil") is None
        # What a player gives up for another film is no failure.
        assert [c for c in complaints if not c.endswith(".mp4")] == []
    finally:
        context.close()


def shown(page):
    """The episode, and that beside it, if there is one."""
    return page.locator("#films figcaption b").all_inner_texts()


def wait_for(page, episode):
    page.wait_for_function(
        "name => document.querySelector('#films b')?.innerText === name", arg=episode
    )


def step(page):
    return int(page.inner_text("#step-number").split(" /")[0])


def cursor(page, number=0):
    """Where the cursor of a plot is, in pixels from its left."""
    area = page.locator("#plot-list .area").nth(number)
    return area.locator(".cursor").bounding_box()["x"] - area.bounding_box()["x"]


def click_at(page, share, plot=0):
    """Click in a plot, at a share of its axis; how far that is from its left."""
    area = page.locator("#plot-list .area").nth(plot)
    pixels = area.evaluate(f"({{clientWidth}}) => LEFT + {share} * (clientWidth - LEFT - RIGHT)")
    area.click(position={"x": pixels, "y": 30})
    return pixels


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW])
def test_every_view_opens_wide_and_narrow_light_and_dark(size, scheme, shop, browser, tmp_path):
    with opened(browser, shop, size=size, scheme=scheme) as page:
        wait_for(page, "low_dim / demo_0")
        for name in ("episodes", "datasets", "runs"):
            page.click(f"#tab-{name}")
            box = page.locator(f"#{name}").bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= size[0]
            wider = "document.documentElement.scrollWidth > innerWidth"
            assert not page.evaluate(wider), f"{name} is wider than the window"
            dark = "getComputedStyle(document.body).backgroundColor"
            assert (page.evaluate(dark) == "rgb(20, 23, 27)") == (scheme == "dark")
            picture = page.screenshot(path=tmp_path / f"{name}.png")
            assert len(picture) > 10_000


@pytest.mark.thorough
def test_two_hundred_episodes_open_in_a_moment(shop, browser):
    began = time.perf_counter()
    with opened(browser, shop) as page:
        page.wait_for_selector("#plot-list canvas")
        assert time.perf_counter() - began < 3
        assert page.locator("#list .row").count() < 60  # elements: what can be seen
        page.locator("#list .body").evaluate("body => { body.scrollTop = 1e6 }")
        page.get_by_text("demo_199", exact=True).click()
        wait_for(page, "low_dim / demo_199")


@pytest.mark.thorough
def test_clicks_and_arrows_choose_episodes_and_steps(shop, browser):
    with opened(browser, shop) as page:
        page.locator("#list .row").nth(3).click()
        wait_for(page, "low_dim / demo_3")
        page.keyboard.press("ArrowDown")
        wait_for(page, "low_dim / demo_4")
        for key, expected in [("ArrowRight", 1), ("Shift+ArrowRight", 11), ("ArrowLeft", 10)]:
            page.keyboard.press(key)
            assert step(page) == expected
        before = cursor(page)
        page.keyboard.press("End")
        assert step(page) == 27 and cursor(page) > before
        page.wait_for_url("**/*#episodes/0/4/27")
        page.reload()  # the address leads back
        wait_for(page, "low_dim / demo_4")
        assert step(page) == 27


@pytest.mark.thorough
def test_a_click_in_a_plot_and_hovering_show_values_there(shop, browser):
    with opened(browser, shop) as page:
        wait_for(page, "low_dim / demo_0")
        for share, expected in ((0.25, 7), (0.5, 14)):
            position = click_at(page, share)
            assert step(page) == expected and cursor(page) == pytest.approx(position, abs=1.5)
        position = cursor(page)
        assert [cursor(page, i) for i in range(4)] == pytest.approx([position] * 4)
        value = page.locator("#plot-list .plot").nth(0).locator(".line b").nth(0)
        with_cursor = value.inner_text()
        page.locator("#plot-list .area").nth(1).hover(position={"x": 60, "y": 20})
        assert value.inner_text() != with_cursor and step(page) == 14
        recorded = np.frombuffer(
            bytes(
                page.evaluate(
                    "[...new Uint8Array(episodes.scenes[0].series.actions.values.buffer)]"
                )
            ),
            np.float32,
        ).reshape(-1, 7)
        assert float(with_cursor) == pytest.approx(recorded[14, 0], rel=1e-3)


def film_step(page, number=0):
    """The step that a film shows, by its light, once it has come there: a screenshot may be of
    the picture before, a moment after the film says that it has arrived."""
    page.wait_for_function(
        "[...document.querySelectorAll('#films video')].every(v => v.readyState > 1 && !v.seeking)"
    )
    film = page.locator("#films video").nth(number)
    for _ in range(50):
        with Image.open(io.BytesIO(film.screenshot())) as image:
            light = np.asarray(image.convert("RGB"), float)[20:40, 20:40].mean()
        expected = film.evaluate("v => v.currentTime") * 20 - 0.5
        if abs(light / LIGHT - expected) < 0.5:
            return round(light / LIGHT)
        page.wait_for_timeout(100)
    raise AssertionError(f"the film shows step {light / LIGHT:.2f} at that of {expected:.2f}")


@pytest.mark.thorough
def test_the_film_follows_steps_and_the_cursor_follows_the_film(shop, browser):
    with opened(browser, shop, "#episodes/2/0/0") as page:
        for share, expected in [(0.5, 20), (1, 39), (0, 0)]:
            click_at(page, share)
            assert step(page) == expected == film_step(page)
        page.locator("#step").fill("20")  # the slider
        assert film_step(page) == 20
        page.keyboard.press("ArrowRight")
        assert film_step(page) == 21
        page.keyboard.press("Home")
        before = cursor(page)
        page.keyboard.press("Space")
        page.wait_for_function("document.querySelector('#films video').currentTime > 0.6")
        page.keyboard.press("Space")
        assert page.locator("#films video").evaluate("v => v.paused")
        assert step(page) == film_step(page) >= 11
        assert cursor(page) > before
        page.keyboard.press("Space")  # to the end, where it stops
        page.wait_for_function("document.querySelector('#play').innerText === '▶'")
        assert step(page) == film_step(page) == FRAMES - 1


@pytest.mark.thorough
def test_two_films_run_together(shop, browser):
    with opened(browser, shop, "#episodes/2/0/5") as page:
        page.keyboard.press("c")
        page.keyboard.press("ArrowDown")
        wait_for(page, "filmed / demo_1")
        assert film_step(page, 0) == film_step(page, 1) == 5
        page.keyboard.press("]")
        for _ in range(10):  # each a chance for a frame that comes late
            page.keyboard.press("Home")
            page.keyboard.press("Space")
            page.wait_for_function("document.querySelector('#films video').currentTime > 1")
            page.keyboard.press("Space")
            assert film_step(page, 0) == film_step(page, 1) == step(page) > 15


@pytest.mark.thorough
def test_without_a_film_an_episode_plays_by_the_clock(shop, browser):
    with opened(browser, shop, "#episodes/0/3/0") as page:
        wait_for(page, "low_dim / demo_3")
        page.click("#play")
        page.wait_for_function("Number(document.querySelector('#step').value) > 4")
        page.click("#play")
        stopped = step(page)
        page.wait_for_timeout(200)
        assert step(page) == stopped > 4


@pytest.mark.thorough
def test_keys_are_chosen_and_lines_hidden(shop, browser):
    with opened(browser, shop) as page:
        wait_for(page, "low_dim / demo_0")
        titles = page.locator("#plot-list h3")
        assert titles.all_inner_texts()[:2] == ["actions", "rewards"]
        page.locator("#keys").get_by_text("robot0_joint_pos", exact=True).click()
        assert "obs/robot0_joint_pos" in titles.all_inner_texts()
        page.locator("#keys").get_by_text("actions", exact=True).click()
        assert "actions" not in titles.all_inner_texts()
        picture = "document.querySelector('#plot-list canvas').toDataURL()"
        before = page.evaluate(picture)
        page.locator("#plot-list .line").first.click()
        assert page.evaluate(picture) != before


@pytest.mark.thorough
def test_the_list_is_filtered_and_sorted(shop, browser):
    with opened(browser, shop) as page:
        names = page.locator("#list .row span:first-child")
        page.keyboard.press("/")
        page.keyboard.type("length>50 mask=train")
        assert names.all_inner_texts() == ["demo_12", "demo_22", "demo_124", "demo_147"]
        page.keyboard.press("Escape")
        page.fill("#filter", "nothing-like-it")
        assert names.count() == 0
        page.fill("#filter", "")
        page.locator("#list .head button").nth(1).click()
        assert names.first.inner_text() == "demo_22"  # the longest
        page.locator("#list .head button").nth(1).click()
        assert int(page.locator("#list .row span:nth-child(2)").first.inner_text()) == 24
        page.locator("#list .head button").nth(5).click()
        assert names.all_inner_texts()[:2] == ["demo_22", "demo_12"]  # the strangest
        page.locator("#masks").get_by_text("valid").click()
        page.locator("#list .row").first.click()
        page.locator("#facts").get_by_text("valid").wait_for()


@pytest.mark.thorough
def test_unusual_episodes_are_jumped_to_the_strangest_first(shop, browser):
    with opened(browser, shop) as page:
        wait_for(page, "low_dim / demo_0")
        page.keyboard.press("u")
        wait_for(page, "low_dim / demo_22")
        assert "its length, 137, is far above the median of 28" in page.inner_text("#facts")
        page.click("#next-unusual")
        wait_for(page, "low_dim / demo_12")
        page.select_option("#kind", "mean action")
        page.wait_for_function(
            "document.querySelector('#facts').innerText.includes('its mean action')"
        )


@pytest.mark.thorough
def test_two_episodes_are_compared_also_of_two_datasets(shop, browser):
    with opened(browser, shop) as page:
        wait_for(page, "low_dim / demo_0")
        page.keyboard.press("c")
        page.locator("#list .row").nth(4).click()
        wait_for(page, "low_dim / demo_4")
        assert shown(page) == ["low_dim / demo_4", "low_dim / demo_0"]
        first = page.locator("#plot-list .plot").first
        assert first.locator(".line").first.locator("b").count() == 2  # a value of each
        assert page.locator("#facts tr").first.locator("td").count() == 2
        plots = page.locator("#plot-list .plot").count()
        page.keyboard.press("o")
        assert page.locator("#plot-list .plot").count() == 2 * plots
        page.select_option("#dataset", "1")
        wait_for(page, "mixed / demo_0")
        assert shown(page) == ["mixed / demo_0", "low_dim / demo_0"]
        page.keyboard.press("x")
        wait_for(page, "low_dim / demo_0")
        assert shown(page)[1] == "mixed / demo_0"
        page.keyboard.press("Escape")
        page.wait_for_function("document.querySelectorAll('#films figure').length === 1")


@pytest.mark.thorough
def test_datasets_are_compared_and_a_bar_lists_its_episodes(shop, browser):
    with opened(browser, shop, "#datasets") as page:
        summary = page.inner_text("#datasets .summary")
        assert "200 of 200 (100 %)" in summary and "15 of 150 (10 %)" in summary
        assert page.locator(".histogram").count() == 6
        assert page.locator(".range").count() == 2 * 7 + 2
        page.get_by_title("low_dim: 1 episodes with length").last.click()
        wait_for(page, "low_dim / demo_22")
        assert page.locator("#list .row").count() == 1


@pytest.mark.thorough
def test_runs_show_curves_episodes_videos_and_what_their_configs_differ_in(shop, browser):
    with opened(browser, shop, "#runs") as page:
        page.wait_for_selector("#run-plots canvas")
        titles = page.locator("#run-plots h3").all_inner_texts()
        assert titles == [
            "success rate: rollout, test; 95 % intervals",
            "return: rollout, test",
            "loss: train, valid (dashed); logarithmic",
        ]
        assert page.locator("#run-list .run").count() == 2
        page.locator("#run-plots .area").first.hover()
        assert page.locator("#run-plots .line b").first.inner_text() == "0 [0, 0.658]"
        page.locator("#metrics").get_by_text("horizon").click()
        assert page.locator("#run-plots .plot").count() == 4
        assert page.locator("#run-episodes .row").count() == 6  # two evaluations and the test
        assert "5" in page.locator("#run-episodes .row").first.inner_text()
        assert page.locator(".configs .differs").count() == page.locator(".configs tr").count() - 1
        assert '"test"' in page.inner_text(".configs") and '"bc"' in page.inner_text(".configs")
        page.uncheck("#only-different")
        page.fill("#config-filter", "num_epochs")
        assert "train.num_epochs" in page.inner_text(".configs")
        if working_backend():
            video = page.locator("#run-videos video").first
            video.evaluate("v => v.play()")
            page.wait_for_function("document.querySelector('#run-videos video').currentTime > 0")


@pytest.mark.thorough
def test_runs_of_one_name_become_one_curve(browser, tmp_path):
    interval = {"Success_Rate_Low": 0.1, "Success_Rate_High": 0.9, "Crashed": 0}
    for seed, rate in ((1, 0.2), (2, 0.6)):
        rates = [record("rollout", e, Success_Rate=rate, **interval) for e in (1, 2)]
        make_run(tmp_path / f"run{seed}", seed=seed, records=rates)
    assert view(tmp_path / "run1", tmp_path / "run2", "--output", tmp_path / "out") == 0
    with opened(browser, tmp_path / "out") as page:
        names = page.locator("#run-plots .line")
        page.locator("#run-plots .area").first.hover()
        assert names.all_inner_texts() == ["bc seed 1\n0.2 [0.1, 0.9]", "bc seed 2\n0.6 [0.1, 0.9]"]
        page.keyboard.press("g")
        page.locator("#run-plots .area").first.hover()
        assert names.all_inner_texts() == ["bc (2 runs)\n0.4 [0.2, 0.6]"]


@pytest.mark.thorough
def test_runs_evaluated_at_other_steps_become_one_curve_without_teeth(browser, tmp_path):
    """They acted, in an environment that reports no success; their losses are negative."""
    for seed, first in ((1, 1), (2, 1.5)):
        records = []
        for i in range(4):
            at = first + i
            logs = {"Return": -12345.678 * at, "Horizon": 9, "n": 1, "Crashed": 0}
            records += [record("rollout", at, **logs), record("train", at, Loss=-1e-3 * at)]
            records.append(record("episode", at, Seed=1, Return=-1.0, Horizon=9, Crashed=0))
        run = make_run(tmp_path / f"run{seed}", seed=seed, records=records)
        config = json.loads((run / "config-12345678.json").read_text())
        config["train"]["num_steps"] = 100
        (run / "config-12345678.json").write_text(json.dumps(config))
    assert view(tmp_path / "run1", tmp_path / "run2", "--output", tmp_path / "out") == 0
    with opened(browser, tmp_path / "out", "#runs") as page:
        page.wait_for_selector("#run-plots canvas")
        assert page.locator("#run-plots h3").all_inner_texts() == ["return: rollout", "loss: train"]
        assert "gradient" not in page.inner_text("#axis")
        assert not page.is_visible("#logarithmic")
        assert "success" not in page.inner_text("#run-episodes").lower()
        assert page.locator("#run-list .result").first.inner_text() == "best return -12346"
        widest = "runs.group.plots[0].canvas.getContext('2d').measureText('-50000').width"
        assert page.evaluate(f"LEFT >= {widest} + 8")
        page.keyboard.press("g")
        means = page.evaluate(
            "(({ lines: [line] }) => [...Array(line.count).keys()].map((i) => line.value(i)))"
            "(runs.group.plots[0])"
        )
        assert means == sorted(means, reverse=True) and len(means) > 5


@pytest.mark.thorough
def test_help_shows_the_keys_and_the_command(shop, browser):
    with opened(browser, shop) as page:
        page.keyboard.press("?")
        said = page.inner_text("#help")
        assert "next, last unusual episode" in said and f"--output {shop}" in said
        page.keyboard.press("ArrowDown")  # for the overlay alone
        page.keyboard.press("Escape")
        assert not page.locator("#help").is_visible() and shown(page) == ["low_dim / demo_0"]


@pytest.mark.thorough
def test_hostile_names_stay_text(browser, tmp_path):
    path = write_hostile(tmp_path / (EVIL.replace("/", "|")[:60] + ".hdf5"))
    run = make_run(tmp_path / "run", EVIL, records=[record("train", 1, Loss=1.0, **{EVIL: 1.0})])
    assert view(path, run, "--output", tmp_path / "out") == 0
    with opened(browser, tmp_path / "out") as page:
        page.wait_for_selector("#plot-list canvas")
        assert EVIL.split("\u2028")[0] in page.text_content("#facts")
        page.locator("#masks button").first.click()
        assert page.locator("#list .row").count() == 1
        page.click("#tab-datasets")
        page.click("#tab-runs")
        page.wait_for_selector("#run-plots canvas")
        page.locator("#metrics button").last.click()
        assert page.locator("img").count() == 0


@pytest.mark.thorough
def test_gaps_and_long_episodes_are_drawn(browser, tmp_path):
    lengths = (5000, 4, 4, 4, 4, 4)
    with DemoWriter(tmp_path / "long.hdf5") as writer:
        for length in lengths:
            actions = np.zeros((length, 1), np.float32)
            actions[length // 2] = 7
            writer.write({"actions": actions})
    assert view(tmp_path / "long.hdf5", "--output", tmp_path / "out") == 0
    with opened(browser, tmp_path / "out") as page:
        wait_for(page, "demo_0")
        click_at(page, 0.5)
        assert abs(step(page) - 2500) < 20
        assert "thinned, a value stands for 3 steps" in page.inner_text("#facts")
        page.keyboard.press("Home")
        page.evaluate("episodes.player.goTo(2500)")
        assert page.locator("#plot-list .line b").first.inner_text() == "7"
        page.locator("#list .row").nth(1).click()
        wait_for(page, "demo_1")
        assert step(page) == 3  # as far as it goes


@pytest.mark.thorough
def test_an_episode_whose_script_is_gone_says_so(browser, tmp_path):
    assert view(write_demos(tmp_path / "demos.hdf5"), "--output", tmp_path / "out") == 0
    (tmp_path / "out/data/0/1.js").unlink()
    with pytest.raises(AssertionError, match="1.js"), opened(browser, tmp_path / "out") as page:
        page.locator("#list .row").nth(1).click()
        page.wait_for_selector("#problem")
        assert "data/0/1.js is missing" in page.inner_text("#problem")
