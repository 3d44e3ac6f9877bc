"""Names of earlier versions still lead to what they meant."""

from importlib import import_module

import pytest

from offrl import aliases


@pytest.mark.parametrize(("earlier", "now"), aliases.MOVED.items(), ids=aliases.MOVED)
def test_a_module_that_has_moved_is_found_where_it_was(earlier, now):
    assert import_module(earlier) is import_module(now)
    assert import_module(now).__spec__.name == now
