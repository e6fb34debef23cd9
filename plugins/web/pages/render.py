"""Jinja2's environment: all text from outside is escaped, and control characters are shown as escapes."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, StreamingResponse

from lockgate.plugins.web.access import Host
from lockgate.plugins.web.pages.svg_chart import chart
from lockgate.storage_core.printable import printable

_HERE: Final = Path(__file__).parent
_DASH: Final = Markup('<span class="none" title="unknown">&ndash;<span class="sr"> unknown</span></span>')
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

CUT: Final = "<!-- cut -->"
"""Where a page is cut in two; see `Pages.response_in_two`."""

STATIC: Final[Mapping[str, tuple[bytes, str]]] = {
    file.name: (file.read_bytes(), mimetypes.guess_type(file.name)[0] or "application/octet-stream")
    for file in sorted((_HERE / "static").iterdir())
    if file.is_file()
}
"""Content and type of each static file."""
VERSION: Final = hashlib.sha256(b"".join(body for body, _ in STATIC.values())).hexdigest()[:12]
"""Changes with the static files, which a browser may keep for ever."""


class Pages:
    """Renders the templates for one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._environment = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "count": count,
            "size": size,
            "duration": duration,
            "when": when,
            "number": number,
        }
        self._environment.globals |= {"chart": chart, "run_href": host.run_href, "theme": host.theme}

    def response(
        self, request: Request, template: str, values: Mapping[str, Any], status: int = 200
    ) -> HTMLResponse:
        """Return a page.

        Args:
            request: The request.
            template: Name of the template, without its suffix.
            values: Values of the template.
            status: Status of the response.
        """
        return HTMLResponse(self._text(request, template, status, values), status)

    def response_in_two(
        self,
        request: Request,
        template: str,
        values: Mapping[str, Any],
        later: Callable[[], Awaitable[Mapping[str, Any]]],
    ) -> StreamingResponse:
        """Return a page whose part below `CUT` is read after the part above it was sent.

        Args:
            request: The request.
            template: Name of the template, which has `CUT` once.
            values: Values of the template.
            later: Reads the values that replace some of the first ones; it raises nothing.
        """

        async def parts() -> AsyncIterator[str]:
            yield self._text(request, template, 200, values).partition(CUT)[0]
            found = self._text(request, template, 200, {**values, **await later()})
            yield found.partition(CUT)[2]

        # A compressing middleware would keep the first part until it has enough to compress.
        return StreamingResponse(parts(), media_type="text/html", headers={"content-encoding": "identity"})

    def _text(self, request: Request, template: str, status: int, values: Mapping[str, Any]) -> str:
        root = request.scope.get("root_path", "")

        def href(path: str, **params: str | int | None) -> str:
            """Return the address of a page; parameters without a value are left out."""
            given = (
                f"{name}={_quoted(str(value))}" for name, value in params.items() if value not in {None, ""}
            )
            query = "&".join(given)
            return f"{root}{path}?{query}" if query else f"{root}{path}"

        offers = (
            self._host.offers(request) if self._host.actions is not None and status < 400 else frozenset()
        )
        return self._environment.get_template(f"{template}.html").render(
            href=href,
            here={name: value for name, value in request.query_params.items() if name != "after"},
            path=page_path(request),
            static=lambda name: f"{root}/static/{name}?v={VERSION}",
            api=f"{root}/api/v1",
            offers=offers,
            **values,
        )


@lru_cache(maxsize=1_024)
def _quoted(value: str) -> str:
    """Return a value for a query; the rows of a page repeat a few."""
    return quote_plus(value)


def page_path(request: Request) -> str:
    """Return the path below the application, whether or not the server's path includes its prefix."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def _shown(value: Any) -> Any:
    """Show control characters of any text that a template prints; None would be a mistake of the template."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def count(value: int | None) -> str | Markup:
    """Return a number with separators, or a dash if it is unknown."""
    return _DASH if value is None else f"{value:,}"


def size(value: float | None) -> str | Markup:
    """Return a number of bytes in binary units."""
    if value is None:
        return _DASH
    unit = 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.0f} B" if unit == 0 else f"{value:,.1f} {_UNITS[unit]}"


def duration(value: float | None) -> str | Markup:
    """Return seconds as the two largest units that matter."""
    if value is None:
        return _DASH
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes = int(value // 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"
    return f"{minutes // 1440} d"


def when(value: float | None) -> Markup:
    """Return a time; the script shows it as an age, and the time on demand."""
    if value is None:
        return _DASH
    at = datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    return Markup(f'<time datetime="{at}">{at[:10]} {at[11:19]} UTC</time>')  # noqa: S704 - digits only


def number(value: float | None, unit: str) -> str | Markup:
    """Return a value of a chart in its unit."""
    match unit:
        case "bytes":
            return size(value)
        case "s":
            return duration(value)
    return count(None if value is None else int(value))
