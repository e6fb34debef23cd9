"""Tables in a bucket of a real S3 server, read by each reader with its own S3 client."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from tests.support.commit.destination import World
from tests.support.s3 import real_server
from tests.support.tables import duck, publish

pytestmark = [pytest.mark.integration, pytest.mark.requires("s3-server")]

KEY, SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name, value in real_server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    return World(tmp_path, real_server.new_url())


def test_each_reader_reads_a_table_in_a_bucket(bucket: World) -> None:
    columns = [("x", "bigint"), ("place", "string")]
    files = {"place=a b%3A%25/x.parquet": pa.table({"x": [1, 2]}), "place=é/x.parquet": pa.table({"x": [3]})}
    files["place=plain/x.parquet"] = pa.table({"x": [5]})
    publish(bucket, "a", files, columns=columns, tables=["delta", "iceberg"])
    replaced = {"place=é/y.parquet": pa.table({"x": [4]})}
    receipt = publish(bucket, "b", replaced, columns=columns, mode="replace", scope="partitions")
    assert receipt.tables_behind == ""
    expected = [(1, "a b:%"), (2, "a b:%"), (4, "é"), (5, "plain")]
    endpoint, url = os.environ["AWS_ENDPOINT_URL"], bucket.url
    duck().execute(
        f"CREATE OR REPLACE SECRET s (TYPE s3, KEY_ID '{os.environ[KEY]}', SECRET '{os.environ[SECRET]}', "
        f"ENDPOINT '{urlsplit(endpoint).netloc}', URL_STYLE 'path', USE_SSL false, REGION 'us-east-1')"
    )
    found = {
        "delta-rs": DeltaTable(url).to_pyarrow_table(),
        "DuckDB delta": duck().execute(f"FROM delta_scan('{url}')").to_arrow_table(),
        "DuckDB iceberg": duck().execute(f"FROM iceberg_scan('{url}/_iceberg')").to_arrow_table(),
        "pyiceberg": StaticTable.from_metadata(
            f"{url}/_iceberg/metadata/v2.metadata.json",
            {
                "s3.endpoint": endpoint,
                "s3.access-key-id": os.environ[KEY],
                "s3.secret-access-key": os.environ[SECRET],
            },
        ).scan().to_arrow(),
    }  # fmt: skip
    for reader, table in found.items():
        assert sorted((row["x"], row["place"]) for row in table.to_pylist()) == expected, reader
    # Polars asks S3 for a space as %20 and for é as %C3%A9, which are other keys.
    assert pl.scan_delta(url).filter(pl.col("place") == "plain").collect()["x"].to_list() == [5]
