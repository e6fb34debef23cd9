"""Tests of the allow-lists: what a form may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockgate.operators.trigger_rights import AllowLists, allow_lists
from lockgate.storage_core.errors import InvalidInputError

LISTS = AllowLists(
    sources=("/data/in", "s3://raw/sales", "file:///srv/a b", "s3://whole"),
    destinations=("s3://lake/open", "/lake"),
    transforms=("mypackage.sales:*", "other.module:tidy"),
)

READ = {
    "/data/in": "file:///data/in",
    "/data/in/a/b.csv": "file:///data/in/a/b.csv",
    "/data/in/../in/a": "file:///data/in/a",
    "file:///data/in/a": "file:///data/in/a",
    "file:/data/in/a": "file:///data/in/a",
    "/data/in/*.csv": "file:///data/in/*.csv",
    "/data/in/day=[0-9]*/part-*": "file:///data/in/day=[0-9]*/part-*",
    "/data/in*": None,
    "/data/in/day=10%3A00": "file:///data/in/day=10%3A00",
    "/srv/a b/c": "file:///srv/a b/c",
    "s3://raw/sales": "s3://raw/sales",
    "s3a://raw/sales/x": "s3://raw/sales/x",
    "s3a://whole/*/x": "s3://whole/*/x",
    "s3://whole": "s3://whole",
    "": None,
    "/": None,
    "/etc/passwd": None,
    "/data/in2": None,
    "/data/in/../../etc/passwd": None,
    "/data/in/%2e%2e/%2e%2e/etc/passwd": None,
    "/data/in/..%2f..%2fetc/passwd": None,
    "%2fetc/passwd": None,
    "file:/etc/passwd": None,
    "file://localhost/data/in": None,
    "/data/in/{a,../../../etc/passwd}": None,
    "{/data/in,/etc/passwd}": None,
    "/data/in/\\.\\./\\.\\./etc/passwd": None,
    "/data/in/*/../../etc/passwd": None,
    "*": None,
    "/data/*/a": None,
    "/data/in/a?b": None,
    "/data/in\0/../../etc/passwd": None,
    "s3://raw": None,
    "s3://raw/sales/../secret": None,
    "s3://raw/sales/%2e%2e/secret": None,
    "s3://raw/*": None,
    "s3a://raw@evil/sales": None,
    "s3a://key:secret@raw/sales": None,
    "s3://other/raw/sales": None,
    "hdfs:///data/in": None,
    "jar:file:///data/in": None,
    "s3:/raw/sales": None,
}


@pytest.mark.parametrize(("given", "read"), READ.items())
def test_a_source_is_compared_as_spark_would_resolve_it(given: str, read: str | None) -> None:
    if read is not None:
        assert LISTS.source(given) == read
        return
    with pytest.raises(InvalidInputError, match=r"nothing was read|has no meaning|destination"):
        LISTS.source(given)


def test_a_refusal_names_the_input_the_setting_and_the_remedy() -> None:
    with pytest.raises(InvalidInputError) as refused:
        LISTS.destination("/etc")

    assert str(refused.value) == (
        "destination '/etc' is not allowed in a form: LOCKGATE_TRIGGER_DESTINATIONS (without it "
        "LOCKGATE_DESTINATIONS) allows s3://lake/open, /lake; nothing was read or written; choose another, "
        "or ask the operator of Airflow's workers to extend that setting"
    )


def test_links_are_followed_before_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / "link").symlink_to(tmp_path / "out")
    (tmp_path / "alias").symlink_to(tmp_path / "in")
    lists = AllowLists(sources=(str(tmp_path / "alias"),), libraries=(str(tmp_path / "in"),))

    assert lists.source(str(tmp_path / "in" / "a")) == f"file://{tmp_path}/in/a"
    assert lists.source(str(tmp_path / "alias" / "a")) == f"file://{tmp_path}/alias/a"
    for outside in ("in/link", "in/link/a", "alias/link/*.csv", "out"):
        with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_SOURCES"):
            lists.source(str(tmp_path / outside))
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_LIBRARIES"):
        lists.library(str(tmp_path / "in"))  # it has a link that leads out
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_LIBRARIES"):
        lists.library(f"{tmp_path}/in/link/../secret")  # the parent of the link's target


@pytest.mark.parametrize(
    ("given", "is_allowed"),
    [
        ("mypackage.sales:clean", True),
        ("other.module:other", False),
        ("mypackage.sales_evil:clean", False),
        ("mypackage.sales:clean\nos:system", False),
        ("mypackage.sales:a.b", False),
        ("mypackage.sales", False),
    ],
)
def test_a_transformation_matches_a_pattern(given: str, is_allowed: bool) -> None:
    if is_allowed:
        LISTS.transform(given)
        return
    with pytest.raises(InvalidInputError, match="LOCKGATE_TRIGGER_TRANSFORMS"):
        LISTS.transform(given)


def test_by_default_a_form_reads_and_writes_the_configured_destinations_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKGATE_DESTINATIONS", "s3://lake/a,/lake/b")

    lists = allow_lists()

    assert (lists.sources, lists.destinations) == (("s3://lake/a", "/lake/b"),) * 2
    assert (lists.libraries, lists.transforms, lists.staging) == ((), (), ())
    monkeypatch.setenv("LOCKGATE_TRIGGER_SOURCES", '["/in"]')
    monkeypatch.setenv("LOCKGATE_TRIGGER_DESTINATIONS", '["/out"]')
    assert (allow_lists().sources, allow_lists().destinations) == (("/in",), ("/out",))


UNOPENED: list[tuple[str, str, bool]] = [
    ("destination", "/lake/x", True),
    ("destination", "file:///lake/x", True),
    ("destination", "s3://lake/open/x", True),
    ("destination", "file:/lake/x", True),
    ("destination", "file:/../lake/x", True),
    ("destination", "file:/open/../secret", False),
    ("destination", "s3a://lake/open/x", False),
    ("library", "/libraries/a.py", True),
    ("library", "file:/libraries/a.py", False),
    ("library", "file:///libraries/a.py", False),
    ("staged", "/staging/a", True),
    ("staged", "file:///staging/a", False),
]


@pytest.mark.parametrize(("what", "given", "is_allowed"), UNOPENED)
def test_a_path_is_compared_as_it_is_opened(what: str, given: str, is_allowed: bool) -> None:
    lists = AllowLists(
        destinations=("s3://lake/open", "/lake"), libraries=("/libraries",), staging=("/staging",)
    )
    if is_allowed:
        getattr(lists, what)(given)
        return
    with pytest.raises(InvalidInputError, match=r"nothing was read or written|write s3://"):
        getattr(lists, what)(given)
