"""``offrl schema``."""

import json

from offrl.__main__ import main


def test_the_schema_is_printed(capsys):
    assert main(["schema"]) == 0
    assert "train" in json.loads(capsys.readouterr().out)["properties"]


def test_it_is_written_to_a_new_file_alone(tmp_path, capsys):
    path = tmp_path / "offrl.schema.json"
    assert main(["schema", "--output", str(path)]) == 0
    assert "bc" in json.loads(path.read_text())["$defs"]
    assert main(["schema", "--output", str(path)]) == 1
    assert "exists; choose another name" in capsys.readouterr().err
