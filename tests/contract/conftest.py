"""Stores under the contract: a directory, a strict fake, moto over HTTP, and a real S3 server."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from lockgate.storage_core.settings import load_settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.fake_s3 import FakeS3, served
from tests.support.s3.moto_server import served_moto

DESTINATION = "s3://lockgate-contract"


@pytest.fixture(scope="session")
def moto_endpoint(bucket_name: str) -> Iterator[str]:
    """Serve moto on a free port of this machine, with one bucket."""
    with served_moto(bucket_name) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def bucket_name() -> str:
    """Return the name of the bucket in moto and in the fake."""
    return DESTINATION.removeprefix("s3://")


@pytest.fixture
def fake_endpoint(bucket_name: str) -> Iterator[str]:
    """Serve a separate fake S3 for this test, with the machine's clock."""
    with served(FakeS3(bucket=bucket_name)) as endpoint:
        yield endpoint


@pytest.fixture(
    params=[
        "local",
        "fake-s3",
        pytest.param("moto", marks=[pytest.mark.soak, pytest.mark.slow]),
        pytest.param("s3-server", marks=[pytest.mark.requires("s3-server"), pytest.mark.integration]),
    ]
)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of store under test."""
    return request.param


@pytest.fixture(params=["crt", "boto3"])
def s3_client(request: pytest.FixtureRequest) -> Literal["crt", "boto3"]:
    """Return the client that sends frequent calls to S3."""
    client: Literal["crt", "boto3"] = request.param
    return client


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Test moto and boto3 with the stores' own contract only, and both together in `make soak` only."""
    repeated = []
    for item in items:
        given = getattr(getattr(item, "callspec", None), "params", {})
        is_store = item.path.name.startswith("test_store_")
        is_moto, is_boto3 = given.get("kind") == "moto", given.get("s3_client") == "boto3"
        if is_boto3 and (given.get("kind") == "local" or not is_store):
            repeated.append(item)
        if is_moto and (is_boto3 or not is_store):
            item.add_marker(pytest.mark.soak)
    items[:] = [item for item in items if item not in repeated]


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Return a directory on disk even if `make test` keeps other files in memory: disks reuse inodes."""
    with tempfile.TemporaryDirectory(prefix="lockgate-", dir="/var/tmp") as root:
        yield Path(root)


@pytest.fixture
def open_at(
    kind: str,
    s3_client: Literal["crt", "boto3"],
    request: pytest.FixtureRequest,
    on_disk: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[str], Store]:
    """Return a function that opens stores of the kind under test at sibling names, new to this test."""
    if kind == "local":
        return lambda name: open_store(str(on_disk / name), load_settings())
    if kind in {"moto", "fake-s3"}:
        endpoint, destination = request.getfixturevalue(f"{kind.removesuffix('-s3')}_endpoint"), DESTINATION
        key, secret = "test", "test"
    else:
        endpoint, destination = (os.environ[f"LOCKGATE_TEST_S3_{name}"] for name in ("ENDPOINT", "URL"))
        key, secret = (os.environ[f"LOCKGATE_TEST_S3_{name}"] for name in ("KEY", "SECRET"))
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    # moto answers some refusals with a 500, for which a retry is useless.
    settings = load_settings(
        s3_endpoint_url=endpoint, s3_region="us-east-1", s3_max_attempts=1, s3_client=s3_client
    )
    folder = secrets.token_hex(8)
    return lambda name: open_store(f"{destination}/{folder}/{name}", settings)


@pytest.fixture
def store(open_at: Callable[[str], Store]) -> Store:
    """Return an empty store of the kind under test with all capabilities enabled."""
    return open_at("dataset")
