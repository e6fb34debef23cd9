"""Read a Great Expectations result in its own JSON form: what blocks, what warns, and what to show.

Nothing here needs Great Expectations: every engine's result has this form.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict

BLOCKING: Final = "critical"
"""Severity that refuses the commit, and the default; a failed `warning` or `info` is only reported."""
SAMPLES: Final = 5
COLUMNS: Final = ("severity", "expectation", "expected", "found", "samples")


class Validation(TypedDict):
    """Result of a suite over the rows; JSON, so that a child process can return it.

    `failures` block the commit, `warnings` do not; `document` is Great Expectations' JSON.
    """

    passed: bool
    suite: str
    expectations: int
    failures: list[str]
    warnings: list[str]
    rows: int
    document: dict[str, Any]


def validation(document: Mapping[str, Any], *, rows: int) -> Validation:
    """Return what a result means for the commit.

    Args:
        document: `result.to_json_dict()` of Great Expectations.
        rows: Number of rows.
    """
    plain: dict[str, Any] = json.loads(json.dumps(document, default=str))
    failed = list(_failed(plain))
    failures = [as_line(each) for each in failed if severity(each) == BLOCKING]
    return Validation(
        passed=not failures,
        suite=str(plain["suite_name"]),
        expectations=len(plain["results"]),
        failures=failures,
        warnings=[as_line(each) for each in failed if severity(each) != BLOCKING],
        rows=rows,
        document=plain,
    )


def severity(result: Mapping[str, Any]) -> str:
    """Return the severity of an expectation: `critical`, `warning` or `info`."""
    return str(result["expectation_config"].get("severity") or BLOCKING)


def as_line(result: Mapping[str, Any]) -> str:
    """Return a failed expectation as one line."""
    config, found = result["expectation_config"], result.get("result") or {}
    observed = {
        name: found[name]
        for name in ("observed_value", "unexpected_count", "partial_unexpected_list")
        if name in found
    }
    return f"{config['type']}({_text(_arguments(config))}): {_text(observed)[:400]}"


def failed_rows(document: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """Return the failed expectations with samples of the values, as rows below `COLUMNS`."""
    return [_row(each) for each in _failed(document)]


def failing(document: Mapping[str, Any], most: int) -> dict[str, str]:
    """Return the expectations that block the commit for the verdict's record, as bounded JSON.

    Args:
        document: The result.
        most: Maximum number of expectations: `failing_1`, ….
    """
    blocking = [each for each in _failed(document) if severity(each) == BLOCKING][:most]
    return {f"failing_{number}": _record(each) for number, each in enumerate(blocking, start=1)}


def _record(result: Mapping[str, Any]) -> str:
    _, expectation, expected, found, _ = _row(result)
    column = _arguments(result["expectation_config"]).get("column")
    samples = ((result.get("result") or {}).get("partial_unexpected_list") or [])[:SAMPLES]
    return _text(
        {
            "expectation": expectation[:200],
            "column": None if column is None else str(column)[:200],
            "found": f"expected {expected[:200]}; found {found[:200] or 'another value'}",
            "samples": [str(sample)[:100] for sample in samples],
        }
    )


def page(document: Mapping[str, Any], *, title: str) -> str:
    """Return a result as an HTML page that loads nothing from the network; all text is escaped."""
    rows = "".join(
        f"<tr class='{'good' if each['success'] else 'bad'}'>"
        + "".join(
            f"<td>{html.escape(cell)}</td>" for cell in ("yes" if each["success"] else "no", *_row(each))
        )
        + "</tr>"
        for each in document["results"]
    )
    heads = "".join(f"<th>{name}</th>" for name in ("met", *COLUMNS))
    counts = document.get("statistics") or {}
    met, total = counts.get("successful_expectations"), counts.get("evaluated_expectations")
    return (
        "<!doctype html><html lang='en'><meta charset='utf-8'>"
        "<meta http-equiv='Content-Security-Policy' "
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title><style>body{{font:15px sans-serif;margin:2em}}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.4em;text-align:left;"
        "vertical-align:top;overflow-wrap:anywhere}.bad{background:#fce8e6}</style>"
        f"<h1>{html.escape(title)}</h1><p>Suite {html.escape(str(document['suite_name']))}: "
        f"{met} of {total} expectations are met.</p>"
        f"<table><tr>{heads}</tr>{rows}</table></html>\n"
    )


def _failed(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (each for each in document["results"] if not each["success"])


def _row(result: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    config, found = result["expectation_config"], result.get("result") or {}
    observed = found.get("observed_value")
    if observed is None and "unexpected_count" in found:
        observed = f"{found['unexpected_count']} of {found.get('element_count', '?')} rows"
    samples: Sequence[Any] = (found.get("partial_unexpected_list") or [])[:SAMPLES]
    return (
        severity(result),
        str(config["type"]),
        _text(_arguments(config)),
        "" if observed is None else str(observed),
        ", ".join(map(str, samples)),
    )


def _arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config["kwargs"].items() if name != "batch_id"}


def _text(value: object) -> str:
    return json.dumps(value, default=str, ensure_ascii=False)
