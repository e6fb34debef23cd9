"""Destinations are parsed from URLs and paths as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockgate.storage_core.errors import InvalidInputError
from lockgate.storage_core.failpoints import FAILPOINTS
from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import open_store
from lockgate.storage_core.stores.open_store import parse_destination


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("s3://lake", "s3://lake"),
        ("s3://lake/", "s3://lake"),
        ("s3://lake/sales/2026/", "s3://lake/sales/2026"),
        ("S3://lake/sales", "s3://lake/sales"),
        ("s3://lake/a b/100%/é#1", "s3://lake/a b/100%/é#1"),
        ("file:///data/sales/", "file:///data/sales"),
        ("file:///", "file:///"),
        ("file:/data/sales", "file:///data/sales"),
        ("FILE:/data", "file:///data"),
        ("/data/~x/$y/a:b", "file:///data/~x/$y/a:b"),
        ("/data//sales/../other", "file:///data/other"),
        ("//data", "file:///data"),
        ("/data/100%25 é#1", "file:///data/100%25 é#1"),
    ],
)
def test_a_destination_has_one_canonical_form(written: str, meant: str) -> None:
    assert parse_destination(written) == meant
    assert parse_destination(meant) == meant


def test_a_relative_path_starts_at_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert parse_destination("out/sales") == f"file://{tmp_path}/out/sales"
    assert parse_destination(".") == f"file://{tmp_path}"


@pytest.mark.parametrize(
    ("written", "remedy"),
    [
        ("", "write s3://bucket/prefix, file:///directory, or a plain path"),
        ("   ", "is empty"),
        ("s3://", "the bucket is missing; write s3://bucket/prefix"),
        ("s3:///prefix", "the bucket is missing"),
        ("s3://La_ke/x", "is not a bucket name"),
        ("s3://lake/a/../b", "could leave the destination"),
        ("s3://lake//a", "could leave the destination"),
        ("s3://lake/a?versionId=1", "leave it out"),
        ("file://host/data", "file:///directory"),
        ("file://data", "three slashes"),
        ("s3a://lake/a", "write s3://"),
        ("gs://lake/a", "scheme 'gs' is not known; write s3://bucket/prefix, file:///directory"),
        ("/data/\0", "choose another"),
        ("s3:/lake/x", "write s3://lake/x"),
        ("s3a:/lake/x", "write s3://lake/x"),
        ("s3:lake/x", "write s3://lake/x"),
        ("dbfs:/sales", "scheme 'dbfs' is not known; for Databricks' dbfs:/ write the path /dbfs/"),
        ("dbfs:/sales/a://b", "scheme 'dbfs' is not known"),
        ("hdfs:/sales", "scheme 'hdfs' is not known"),
        ("file:data", "scheme 'file' is not known"),
        ("C:/data", "scheme 'c' is not known"),
        ("a:b/c", "or a plain path, such as './a:b/c'"),
        (" s3://lake/x", "write 's3://lake/x'"),
        ("s3://lake/x ", "write 's3://lake/x'"),
        ("/data/x\n", "write '/data/x'"),
        ("~/lake", f"write {Path.home()}/lake, or ./NAME"),
        ("~nobody_of_this_name/lake", "./NAME for a folder"),
        ("$LAKE/sales", "write what it stands for"),
        ("{{ var.value.lake }}/sales", "write what it stands for"),
        ("<bucket>/sales", "write what it stands for"),
        ("'s3://lake/x'", "write what it stands for"),
        ('"/data"', "write what it stands for"),
        ("https//x://y", "write what it stands for"),
    ],
)
def test_an_invalid_destination_is_refused_with_the_remedy(written: str, remedy: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        parse_destination(written)
    assert remedy in str(refusal.value)


@given(st.text())
def test_parsing_twice_changes_nothing(text: str) -> None:
    try:
        once = parse_destination(text)
    except InvalidInputError:
        return
    assert parse_destination(once) == once


def test_a_folder_with_the_name_of_a_url_is_written_with_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    for name in ("a:b", "~x", "$y"):
        assert parse_destination(f"./{name}") == f"file://{tmp_path}/{name}"
    assert list(tmp_path.iterdir()) == []


def test_opening_a_store_makes_no_request(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "dest"), load_settings())
    bucket = open_store("s3://lake/sales/", load_settings(s3_endpoint_url="http://127.0.0.1:1"))

    assert store.url == f"file://{tmp_path}/dest"
    assert list(tmp_path.iterdir()) == []
    assert bucket.url == "s3://lake/sales"
    assert open_store("s3://lake", load_settings()).url == "s3://lake"


def test_opening_a_store_arms_the_failpoints_of_the_settings(tmp_path: Path) -> None:
    try:
        open_store(str(tmp_path), load_settings(failpoints="decide.create.after=lost"))
        assert list(FAILPOINTS.armed) == ["decide.create.after"]
    finally:
        FAILPOINTS.arm({})


@pytest.mark.parametrize(
    "url",
    [
        "s3://me:hunter2@bucket/a",
        "s3://me:a/hunter2@bucket",
        "ftp://me:hun@hunter2@host",
        "file://me:hunter2@host/a",
        "s3://me:hunter2@bucket?a=b",
        "s3:/me:hunter2@bucket/a",
        " s3://me:hunter2@bucket/a",
        "'https://me:hunter2@host/a'",
    ],
)
def test_a_refused_destination_is_named_without_its_password(url: str) -> None:
    with pytest.raises(InvalidInputError, match=r"bucket|host") as caught:
        parse_destination(url)

    assert "hunter2" not in str(caught.value)


def test_a_key_with_an_at_sign_is_an_ordinary_key() -> None:
    assert parse_destination("s3://lake/x:y@z") == "s3://lake/x:y@z"
