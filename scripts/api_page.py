"""Write the reference page of the JSON API from its OpenAPI document: `make docs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.app import web_app
from lockgate.plugins.web.reads import Reads
from lockgate.storage_core.settings import Settings

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "api.md"
HEAD: Final = """\
<!-- Written by `make docs` from the OpenAPI document of lockgate/plugins/web: change the docstrings there. -->
# JSON API

The pages read this API, and other programs may. Its address is that of the pages: `https://AIRFLOW/lockgate/api/v1` in Airflow, or
`http://127.0.0.1:8411/lockgate/api/v1` with [`lockgate ui`](command-line.md#lockgate-ui). `openapi.json` below it describes every route and type. Within version 1
routes and fields are added, and none is removed or changes its meaning.

- **Permission.** Every route asks the program that serves it. Airflow takes its own token or cookie; `lockgate ui` the token that it prints.
  Both take it as `Authorization: Bearer TOKEN`: `curl -H "Authorization: Bearer TOKEN" http://127.0.0.1:8411/lockgate/api/v1/jobs`. The token of `lockgate ui` follows
  `?token=` in the printed address; Airflow's is the answer to a `POST` to `/auth/token` with `username` and `password`, under its simple auth manager.
- **Lists** have at most `limit` items (1 to 200; 50 without it) in a fixed order. `next_after` of a page is `after` of the next one; null: there is no more.
- **Unknown.** `unknown` names what could not be read, one sentence each: a store that does not answer is no error of the page.
- **Errors** are [problem details](https://www.rfc-editor.org/rfc/rfc9457) (`application/problem+json`). `type` is `urn:lockgate:error:` and a class of
  [errors](errors.md), or `about:blank`; `detail` is for people. 400 and 422: the request is not valid; 404: unknown; 409: the state does not allow it; 423: safe
  mode; 502: a record is malformed; 503: something does not answer, and trying again is safe; 504: the outcome is not known.
- **Refresh.** An answer has a weak `ETag`; with `If-None-Match` an unchanged one is 304 without a body.
- **Read your writes.** An answer has a header `Lockgate-Token`, if there is a journal. `at_least=TOKEN`, or the header `Lockgate-At-Least`, reads a state at least as
  new as the token's, at every API server.
- **Actions** take JSON only, and refuse requests that another site sends (`Sec-Fetch-Site`, `Origin`). `dry_run` is true unless the body says otherwise: it says what
  would be done, and changes nothing.

Times are seconds since the epoch, sizes are bytes; None is `null` in JSON. A destination is read only if a job in the journal has used it, or the host names it.
"""  # noqa: E501 - as long as the lines of the other pages
_REF: Final = re.compile(r"#/components/schemas/(.+)")


def page() -> str:
    """Return the page."""
    document = _document()
    parts = [HEAD, "## Routes\n", *_routes(document), "\n## Types\n"]
    return "\n".join([*parts, *_types(document["components"]["schemas"])])


def routes() -> list[str]:
    """Return the lines of the routes, one for each."""
    return list(_routes(_document()))


def _document() -> Mapping[str, Any]:
    host = Host(may_read=_nothing, may_act={}, offers=lambda _: frozenset(), user=lambda _: "")
    return web_app(host, Reads(Settings(journal_url="none"))).openapi()


def _nothing() -> None:
    """Let every caller in: only the description is read."""


def _routes(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            found = [one for one in operation.get("parameters", ()) if one["in"] == "query"]
            names = [f"`{one['name']}`" + ("" if one["required"] else "?") for one in found]
            answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
            text = " ".join(operation.get("description", operation["summary"]).split("\n\n")[0].split())
            if method == "post":
                text = f"{operation['summary']}."
            taken = f" Takes {', '.join(names)}." if names else ""
            body = operation.get("requestBody")
            if body:
                taken = f" Takes {_type(body['content']['application/json']['schema'])}."
            route = path.removeprefix("/api/v1")
            yield f"- `{method.upper()} {route}`: {text}{taken} Returns {_type(answer)}."


def _types(schemas: Mapping[str, Any]) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        if name.startswith("Page_") or "properties" not in schema:
            continue
        text, _, attributes = schema.get("description", "").partition("Attributes:\n")
        meanings = dict(re.findall(r"^ *(\w+): ((?:.|\n(?! *\w+: ))*)", attributes, re.MULTILINE))
        yield f"### {name}\n\n{' '.join(text.split())}\n"
        yield "| field | type | meaning |\n|---|---|---|"
        for field, kind in schema["properties"].items():
            meaning = " ".join(meanings.get(field, "").split()).replace("|", "\\|")
            yield f"| `{field}` | {_type(kind)} | {meaning} |"
        yield ""


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        match = _REF.fullmatch(schema["$ref"])
        name = match[1] if match else ""
        if name.startswith("Page_"):
            return f"a page of [{name[5:-1]}](#{name[5:-1].lower()})"
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "value"))


if __name__ == "__main__":
    PAGE.write_text(page())
