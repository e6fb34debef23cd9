"""The reference page of the API."""

from __future__ import annotations

from scripts import api_page


def test_the_page_of_the_api_is_what_make_docs_writes() -> None:
    assert api_page.PAGE.read_text() == api_page.page(), "run `make docs`"
