"""The tables of success rates in the docs are those of the answers that are kept."""

from conftest import ROOT


def test_the_page_has_the_tables_of_the_present_answers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    for name, task in results.TASKS.items():
        written = page.partition(results.BEGIN.format(task.part))[2].partition(results.END)[0]
        assert results.table(name) in written, "benchmarks/results.py fills them"
