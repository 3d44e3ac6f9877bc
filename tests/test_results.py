"""The tables of scores in the docs are those of the answers that are kept."""

import pytest
from conftest import ROOT

from offrl.studies.table import write_table

STUDIES = sorted(path.stem for path in (ROOT / "benchmarks" / "studies").glob("*.yaml"))
SMALLEST = "peers_lift"  # of all others the intervals take seconds


@pytest.mark.parametrize(
    "study",
    [pytest.param(s, marks=[pytest.mark.thorough] * (s != SMALLEST)) for s in STUDIES],
)
def test_the_page_has_the_present_results_of_a_study(study, monkeypatch, tmp_path):
    pytest.importorskip("rliable")
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "studies")
    import page

    monkeypatch.setattr(page, "PICTURES", tmp_path)
    part = f"<!-- study {study} -->\n{page.part(study)}<!-- end"
    assert part in page.PAGE.read_text(encoding="utf-8"), "benchmarks/studies/page.py fills it"


def test_a_study_that_begins_anew_keeps_what_it_had_reached_elsewhere(monkeypatch, tmp_path):
    pytest.importorskip("rliable")
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "studies")
    import page

    monkeypatch.setattr(page, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(page, "ROOT", tmp_path)
    file = page.FOLDER / "imitation.yaml"
    study = page.read_study(file)
    done = page.Outcome("BC", "Can", 1, steps=20000)
    page.write_results(page.writable_folder(page.KEPT / file.stem) / page.CSV, [done])
    output = page.writable_folder(tmp_path / study.output)
    write_table(output, page.Plan(study, file.parent).cells(), "offrl study")
    page.keep(file.stem)
    found = page.results(file.stem)
    assert len(found) > 1 and [r for r in found if r.status != page.WAITING] == [done]


def test_the_page_has_the_tables_of_the_present_answers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import measure
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    for name, task in results.TASKS.items():
        written = page.partition(results.BEGIN.format(task.part))[2].partition(measure.END)[0]
        assert results.table(name) in written, "benchmarks/results.py fills them"


def test_the_page_has_the_table_of_the_present_fine_tuning(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import finetune
    import measure
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    written = page.partition(results.BEGIN.format(finetune.PART))[2].partition(measure.END)[0]
    assert finetune.table() in written, "benchmarks/finetune.py fills it"


def test_the_page_has_the_present_returns_of_online_rl(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import online_results
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    written = page.partition(online_results.BEGIN)[2]
    assert online_results.table() in written, "benchmarks/online_results.py fills it"


def test_the_page_has_the_present_returns_of_the_online_configs(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import online_configs
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    written = page.partition(online_configs.BEGIN)[2]
    assert online_configs.table() in written, "benchmarks/online_configs.py fills it"
