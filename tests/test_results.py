"""The tables of scores in the docs are those of the answers that are kept."""

from conftest import ROOT


def test_the_page_has_the_tables_of_the_present_answers(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    for name, task in results.TASKS.items():
        written = page.partition(results.BEGIN.format(task.part))[2].partition(results.END)[0]
        assert results.table(name) in written, "benchmarks/results.py fills them"


def test_the_page_has_the_table_of_the_present_fine_tuning(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import finetune
    import results

    page = results.PAGE.read_text(encoding="utf-8")
    written = page.partition(results.BEGIN.format(finetune.PART))[2].partition(results.END)[0]
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
