"""The reference page of the API."""

from __future__ import annotations

from scripts import api_page


def test_each_route_on_the_page_is_described_as_the_openapi_document_describes_it() -> None:
    lines = [
        line for line in api_page.PAGE.read_text().splitlines() if line.startswith(("- `GET ", "- `POST "))
    ]

    assert len(lines) > 15
    assert set(lines) - {line.strip() for line in api_page.routes()} == set(), (
        "run `python -m scripts.api_page`"
    )
