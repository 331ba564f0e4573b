"""Loaders of data, as the table of docs/data.md lists them."""

import pytest
import what_goes_in

LOADERS = {name: (said, make) for name, said, make in what_goes_in.loaders()}


def test_the_page_has_the_table_of_the_command() -> None:
    text = what_goes_in.PAGE.read_text()
    section = text[text.index(what_goes_in.BEGIN) + len(what_goes_in.BEGIN) : text.index(what_goes_in.END)]
    assert section.strip() == what_goes_in.table()
    assert len(LOADERS) >= 12


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_is_taken_or_refused_by_name(name: str) -> None:
    said, make = LOADERS[name]
    assert said in what_goes_in.found_of_loader(make)
