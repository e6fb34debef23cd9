"""Write the reference page of the JSON API from its OpenAPI document: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.application import web_app
from lockgate.plugins.web.request_reads import Reads
from lockgate.storage_core.settings import Settings

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
HEAD: Final = """\
<!-- Written by `make docs` from the OpenAPI document of lockgate/plugins/web: change the docstrings there. -->
# JSON API

The pages read this API, and other programs may. Its address is that of the pages: `https://AIRFLOW/lockgate/api/v1` in Airflow, or
`http://127.0.0.1:8411/lockgate/api/v1` with [`lockgate ui`](command-line.md#lockgate-ui). **`openapi.json` below it describes every type.** Within
version 1, from its first release on, routes and fields are added; none is removed or changes its meaning.

- **Permission**: `curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:8411/lockgate/api/v1/jobs`. The token of `lockgate ui` follows `?token=` in the
  printed address; Airflow's is the answer to a `POST` to `/auth/token`.
- **Lists** have at most `limit` items (1 to 200; 50 without it). `next_after` of a page is `after` of the next one; null: there is no more.
- **Unknown**: `unknown` names what could not be read. A store that does not answer is no error.
- **Errors** are [problem details](https://www.rfc-editor.org/rfc/rfc9457). `type` is `urn:lockgate:error:` and a class of [errors](errors.md).
  400 and 422: not valid; 404: unknown; 409: the state does not allow it; 423: safe mode; 502: a malformed record; 503: something does not
  answer, and trying again is safe; 504: the outcome is not known.
- **Refresh**: an answer has a weak `ETag`; with `If-None-Match` an unchanged one is 304.
- **Read your writes**: an answer has a header `Lockgate-Token`; every route takes `at_least=TOKEN`, or the header `Lockgate-At-Least`.
- **Actions** take JSON only, and refuse requests of other sites. `dry_run` is true unless the body says otherwise.

Times are seconds since the epoch, sizes are bytes. A destination is read only if a job in the journal has used it, or the host names it.

| route | parameters | does |
|---|---|---|
"""  # noqa: E501 - as long as the lines of the other pages


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"{line}\n" for line in _routes(_document()))


def _document() -> Mapping[str, Any]:
    host = Host(may_read=_nothing, may_act={}, offers=lambda _: frozenset(), user=lambda _: "")
    return web_app(host, Reads(Settings(journal_url="none"))).openapi()


def _nothing() -> None:
    """Let every caller in: only the description is read."""


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            text = " ".join((operation["description"] or operation["summary"]).split("\n\n")[0].split())
            if method == "post":
                text = f"{operation['summary']}."
            route = path.removeprefix("/api/v1")
            yield f"| `{method.upper()} {route}` | {', '.join(_parameters(operation))} | {text} |"


def _parameters(operation: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parameters of a route, optional ones with a question mark, without those of every list."""
    for one in operation.get("parameters", ()):
        if one["in"] == "query" and one["name"] not in {"after", "limit", "at_least"}:
            yield f"`{one['name']}`" + ("" if one["required"] else "?")
    if "requestBody" in operation:
        yield "`dry_run`?, `destination`?, `job_id`?, `turn`?, `reason`?"


if __name__ == "__main__":
    PAGE.write_text(page())
