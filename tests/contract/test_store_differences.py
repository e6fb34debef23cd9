"""Differences between moto and S3 match their table, so that no test relies on behaviour of moto alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import boto3
import pytest
from botocore.config import Config

from tests.contract.differences import DIFFERENCES, Bucket


@pytest.fixture(params=["fake", "moto"])
def store_name(request: pytest.FixtureRequest) -> str:
    """Return the name of the store that answers."""
    return request.param


@pytest.fixture
def bucket(store_name: str, request: pytest.FixtureRequest, bucket_name: str) -> Iterator[Bucket]:
    client = boto3.client(
        "s3",
        endpoint_url=request.getfixturevalue(f"{store_name}_endpoint"),
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"mode": "standard", "total_max_attempts": 1}),
    )
    yield Bucket(client, bucket_name, f"{secrets.token_hex(8)}/")
    client.close()


@pytest.mark.parametrize("question", DIFFERENCES)
def test_each_store_answers_as_recorded_in_the_table_of_differences(
    bucket: Bucket, store_name: str, question: str
) -> None:
    difference = DIFFERENCES[question]

    assert difference.ask(bucket) == (difference.moto if store_name == "moto" else difference.s3)
    assert difference.moto != difference.s3
