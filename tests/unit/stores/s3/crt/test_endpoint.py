"""The endpoint of a bucket is what boto3 makes of the configuration."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config

from lockgate.storage_core.stores.s3.crt.endpoint import Endpoint, Endpoints

PATH_STYLE = {"s3": {"addressing_style": "path"}}
CONFIGURATIONS: dict[str, tuple[str, dict[str, Any], Endpoint | None]] = {
    "path style": (
        "lake",
        {"endpoint_url": "http://127.0.0.1:9000", "config": Config(**PATH_STYLE)},
        Endpoint("http", "127.0.0.1:9000", "/lake", "eu-west-3", signs_data=True),
    ),
    "endpoint below a path": (
        "lake",
        {"endpoint_url": "https://gate.example:8443/s3", "config": Config(**PATH_STYLE)},
        Endpoint("https", "gate.example:8443", "/s3/lake", "eu-west-3"),
    ),
    "a user in the endpoint": (
        "lake",
        {"endpoint_url": "https://user:secret@gate.example:8443", "config": Config(**PATH_STYLE)},
        Endpoint("https", "gate.example:8443", "/lake", "eu-west-3"),
    ),
    "IPv6": (
        "lake",
        {"endpoint_url": "http://[::1]:9000", "config": Config(**PATH_STYLE)},
        Endpoint("http", "[::1]:9000", "/lake", "eu-west-3", signs_data=True),
    ),
    "AWS": ("lake", {}, Endpoint("https", "lake.s3.eu-west-3.amazonaws.com", "", "eu-west-3")),
    "signed data": (
        "lake",
        {"config": Config(s3={"payload_signing_enabled": True})},
        Endpoint("https", "lake.s3.eu-west-3.amazonaws.com", "", "eu-west-3", signs_data=True),
    ),
    "a bucket with dots": (
        "la.ke",
        {},
        Endpoint("https", "s3.eu-west-3.amazonaws.com", "/la.ke", "eu-west-3"),
    ),
    "dual stack": (
        "lake",
        {"config": Config(s3={"use_dualstack_endpoint": True})},
        Endpoint("https", "lake.s3.dualstack.eu-west-3.amazonaws.com", "", "eu-west-3"),
    ),
    "an access point": (
        "arn:aws:s3:eu-central-1:123456789012:accesspoint/ap",
        {},
        Endpoint("https", "ap-123456789012.s3-accesspoint.eu-central-1.amazonaws.com", "", "eu-central-1"),
    ),
    "without a signature": (
        "lake",
        {"config": Config(signature_version=UNSIGNED)},
        Endpoint("https", "lake.s3.eu-west-3.amazonaws.com", "", None),
    ),
    "an old kind of signature": ("lake", {"config": Config(signature_version="s3")}, None),
}


def client(arguments: dict[str, Any], region: str | None = None) -> Any:
    session = boto3.Session("AKIDEXAMPLE", "secret", region_name="eu-west-3")
    return session.client("s3", region_name=region, **arguments)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_requests_go_where_boto3_sends_them(name: str) -> None:
    bucket, arguments, expected = CONFIGURATIONS[name]
    assert Endpoints(lambda region: client(arguments, region)).of(bucket) == expected


def test_a_bucket_that_moved_has_the_endpoint_of_its_region() -> None:
    endpoints = Endpoints(lambda region: client({}, region))
    endpoints.of("lake")
    endpoints.moved("lake", "us-west-2")
    assert endpoints.of("lake") == Endpoint("https", "lake.s3.us-west-2.amazonaws.com", "", "us-west-2")
    assert endpoints.of("other") == Endpoint("https", "other.s3.eu-west-3.amazonaws.com", "", "eu-west-3")
