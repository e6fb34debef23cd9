"""The way of a write follows from the destination, the session and the options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.spark import frame_write

LOCAL, CLUSTER, CONNECT = "local[2]", "spark://host:7077", ""
ON_S3, ON_FILES = "s3://lake/sales", "/lake/sales"
UPLOADS, FILES, DIRECT = ("spark", True), ("spark", False), ("direct", True)


def way(
    monkeypatch: pytest.MonkeyPatch, via: str, destination: str, master: str, *, jars: bool, **given: Any
) -> tuple[str, bool]:
    """Return the way of a session with a master, or of Spark Connect, and with hadoop-aws or without."""

    def obstacle(session: object, *, s3: bool) -> str:
        if session is connect:
            return "a Spark Connect session"
        return "a session without hadoop-aws" if s3 and not jars else ""

    connect = SimpleNamespace()
    session = SimpleNamespace(sparkContext=SimpleNamespace(master=master)) if master else connect
    monkeypatch.setattr(frame_write, "obstacle", obstacle)
    frame = cast("Any", SimpleNamespace(sparkSession=session))
    fields = {"options": {}, "of_spark": {}, "staging": None, "sort": True, **given}
    return frame_write._Request(frame, destination, **fields).way(via)


@pytest.mark.parametrize(
    ("destination", "master", "jars", "staging", "expected"),
    [
        (ON_S3, CLUSTER, True, None, UPLOADS),
        (ON_S3, LOCAL, True, None, UPLOADS),
        (ON_S3, LOCAL, False, None, FILES),
        (ON_S3, CLUSTER, False, None, DIRECT),
        (ON_S3, CLUSTER, False, "/mnt/shared", FILES),
        (ON_S3, CLUSTER, True, "/mnt/shared", FILES),
        (ON_S3, CONNECT, True, None, DIRECT),
        (ON_S3, CONNECT, True, "/mnt/shared", DIRECT),
        (ON_FILES, LOCAL, False, None, FILES),
        (ON_FILES, CLUSTER, False, None, DIRECT),
        (ON_FILES, CLUSTER, False, "/mnt/shared", FILES),
    ],
)
def test_auto_takes_sparks_own_writer_where_it_can_write(
    monkeypatch: pytest.MonkeyPatch,
    *,
    destination: str,
    master: str,
    jars: bool,
    staging: str | None,
    expected: tuple[str, bool],
) -> None:
    assert way(monkeypatch, "auto", destination, master, jars=jars, staging=staging) == expected


def test_a_user_may_ask_for_files_that_all_executors_see(monkeypatch: pytest.MonkeyPatch) -> None:
    assert way(monkeypatch, "spark", ON_FILES, CLUSTER, jars=False) == FILES


@pytest.mark.parametrize("given", [{"options": {"rowGroupRows": "10"}}, {"sort": False}])
def test_what_only_the_data_source_has_goes_direct(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    assert way(monkeypatch, "auto", ON_S3, CLUSTER, jars=True, **given) == DIRECT
    with pytest.raises(InvalidInputError, match=r"via='spark' does not go with .*nothing was written"):
        way(monkeypatch, "spark", ON_S3, CLUSTER, jars=True, **given)


def test_each_reason_against_sparks_own_writer_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError) as refused:
        way(monkeypatch, "spark", ON_S3, CLUSTER, jars=False, sort=False)
    reasons = (
        str(refused.value).partition("does not go with ")[2].partition("; nothing")[0].split(", nor with ")
    )
    assert reasons == [
        "sort_within_partitions=False",
        "a session without hadoop-aws",
        "a session whose executors may not see the driver's disk",
    ]
