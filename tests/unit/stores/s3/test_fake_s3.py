"""The strict fake S3, called by boto3: behaviour that AWS documents or leaves open, and faults."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ReadTimeoutError,
)

from lockgate.storage_core.settings import MIB
from tests.support.commit.destination import Crash, ManualClock
from tests.support.fake_s3 import FakeS3, Options, faults, served

KEY = {"Bucket": "lake", "Key": "a b/ü%.csv"}
PART = 5 * MIB


@pytest.fixture
def fake() -> FakeS3:
    return FakeS3(clock=ManualClock(1_700_000_000.0))


@contextmanager
def client_of(endpoint: str, *, tries: int = 1) -> Iterator[Any]:
    config = Config(
        retries={"mode": "standard", "total_max_attempts": tries}, s3={"addressing_style": "path"}
    )
    # boto3's default session may be older than the fake and would then open a socket.
    session = boto3.Session("test", "test", region_name="us-east-1")
    client = session.client("s3", endpoint_url=endpoint, config=config)
    yield client
    client.close()


@pytest.fixture
def s3(fake: FakeS3) -> Iterator[Any]:
    with served(fake) as endpoint, client_of(endpoint) as client:
        yield client


def refusal(call: Any, **arguments: object) -> tuple[int, str]:
    """Make a call that is refused; returns the status and S3's error code."""
    with pytest.raises(ClientError) as fault:
        call(**arguments)
    answer = fault.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


def crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def uploaded(s3: Any, *chunks: bytes, **options: object) -> dict[str, Any]:
    """Upload parts; returns the arguments of the completion."""
    upload_id = s3.create_multipart_upload(**KEY, **options)["UploadId"]
    parts = []
    for number, chunk in enumerate(chunks, start=1):
        answer = s3.upload_part(**KEY, UploadId=upload_id, PartNumber=number, Body=chunk)
        parts.append({"PartNumber": number, "ETag": answer["ETag"], "ChecksumCRC32": answer["ChecksumCRC32"]})
    return {**KEY, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}


def keys(s3: Any, **options: object) -> list[str]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="lake", **options)
    return [found["Key"] for page in pages for found in page.get("Contents", [])]


class TestConditions:
    def test_a_batch_deletes_only_the_versions_that_it_names(self, s3: Any) -> None:
        etags = {key: s3.put_object(Bucket="lake", Key=key, Body=key.encode())["ETag"] for key in "abc"}
        objects = [{"Key": "a", "ETag": etags["a"]}, {"Key": "b", "ETag": etags["a"]}, {"Key": "c"}]

        answer = s3.delete_objects(Bucket="lake", Delete={"Objects": objects})
        assert [one["Key"] for one in answer["Deleted"]] == ["a", "c"]
        assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("b", "PreconditionFailed")]
        assert keys(s3) == ["b"]

    @pytest.mark.parametrize("ends", [True, False])
    def test_a_conflict_on_a_completion_destroys_the_upload_unless_configured_otherwise(
        self, fake: FakeS3, s3: Any, ends: bool
    ) -> None:
        fake.behave(Options(conflict_ends_upload=ends))
        complete = uploaded(s3, b"data")
        fake.faults.at(faults.CONFLICT, operation="CompleteMultipartUpload")

        conflict = refusal(s3.complete_multipart_upload, **complete, IfNoneMatch="*")
        assert conflict == (409, "ConditionalRequestConflict")
        if ends:
            assert refusal(s3.complete_multipart_upload, **complete) == (404, "NoSuchUpload")
        else:
            s3.complete_multipart_upload(**complete)

    def test_a_store_without_conditional_requests_ignores_conditions_silently(
        self, fake: FakeS3, s3: Any
    ) -> None:
        fake.behave(Options(conditional_create=False, conditional_put=False, conditional_delete=False))
        s3.put_object(**KEY, Body=b"first")

        s3.put_object(**KEY, Body=b"second", IfNoneMatch="*")
        s3.put_object(**KEY, Body=b"third", IfMatch='"0"')
        s3.complete_multipart_upload(**uploaded(s3, b"fourth"), IfNoneMatch="*")
        assert s3.get_object(**KEY)["Body"].read() == b"fourth"
        s3.delete_object(**KEY, IfMatch='"0"')
        assert keys(s3) == []


class TestUploads:
    def test_a_repeated_completion_succeeds_on_some_stores_and_changes_nothing(
        self, fake: FakeS3, s3: Any
    ) -> None:
        fake.behave(Options(repeated_completion="succeeds"))
        complete = uploaded(s3, b"data")
        first = s3.complete_multipart_upload(**complete)
        s3.put_object(**KEY, Body=b"later")

        assert s3.complete_multipart_upload(**complete)["ETag"] == first["ETag"]
        assert s3.get_object(**KEY)["Body"].read() == b"later"

    def test_the_checksum_of_a_part_is_checked_even_if_its_bytes_are_only_counted(
        self, fake: FakeS3, s3: Any
    ) -> None:
        fake.behave(Options(keeps_parts=False))
        complete = uploaded(s3, b"data", ChecksumAlgorithm="CRC32")
        bad = {**KEY, "UploadId": complete["UploadId"], "PartNumber": 1, "ChecksumCRC32": crc32(b"other")}

        assert refusal(s3.upload_part, **bad, Body=b"data") == (400, "BadDigest")
        s3.complete_multipart_upload(**complete)
        assert s3.head_object(**KEY)["ContentLength"] == 4
        assert refusal(s3.get_object, **KEY) == (501, "NotImplemented")


class TestListings:
    def test_pages_are_as_small_as_the_store_chooses(self, fake: FakeS3, s3: Any) -> None:
        names = ["a-b", "a/b", "a/b c", "b", "ü"]
        for name in names:
            s3.put_object(Bucket="lake", Key=name, Body=b"")
        fake.behave(Options(page_size=1))
        fake.forget()

        assert keys(s3) == names
        assert fake.requests == {"ListObjectsV2": 5}
        assert keys(s3, StartAfter="a/b", Prefix="a") == ["a/b c"]


class TestStrictness:
    def test_unknown_parameters_and_operations_are_refused(self, s3: Any) -> None:
        s3.put_object(**KEY, Body=b"")

        unknown = (501, "NotImplemented")
        assert refusal(s3.get_object_tagging, **KEY) == unknown
        assert refusal(s3.list_objects_v2, Bucket="lake", Delimiter="/") == unknown
        assert refusal(s3.put_object, **KEY, Body=b"", Tagging="a=b") == unknown
        assert refusal(s3.get_object, **KEY, IfMatch='"0"') == unknown
        assert refusal(s3.put_object, **KEY, Body=b"", ChecksumAlgorithm="SHA256") == unknown


class TestFaults:
    def test_a_fault_affects_only_the_nth_request_of_an_operation(self, fake: FakeS3, s3: Any) -> None:
        fake.faults.at(faults.SLOW_DOWN, operation="PutObject", nth=2, times=2)
        s3.put_object(**KEY, Body=b"1")
        s3.head_object(**KEY)

        for _ in range(2):
            assert refusal(s3.put_object, **KEY, Body=b"2") == (503, "SlowDown")
        assert s3.get_object(**KEY)["Body"].read() == b"1"
        s3.put_object(**KEY, Body=b"3")

    @pytest.mark.parametrize(
        ("fault", "error"),
        [(faults.CLOSED, ConnectionClosedError), (faults.TIMED_OUT, ReadTimeoutError)],
        ids=["closed", "timed out"],
    )
    def test_a_response_can_be_lost_before_or_after_the_effect(
        self, fake: FakeS3, s3: Any, fault: faults.Fault, error: type[Exception]
    ) -> None:
        fake.faults.at(fault, operation="PutObject")
        with pytest.raises(error):
            s3.put_object(**KEY, Body=b"")
        assert keys(s3) == []

        fake.faults.clear()
        fake.faults.at(fault.after_the_effect(), operation="PutObject")
        with pytest.raises(error):
            s3.put_object(**KEY, Body=b"")
        assert keys(s3) == [KEY["Key"]]

    @pytest.mark.parametrize("applied", [False, True])
    def test_a_200_can_carry_an_error(self, fake: FakeS3, s3: Any, applied: bool) -> None:
        fault = faults.ERROR_IN_200.after_the_effect() if applied else faults.ERROR_IN_200
        complete = uploaded(s3, b"data")
        fake.faults.at(fault, operation="CompleteMultipartUpload")

        assert refusal(s3.complete_multipart_upload, **complete)[1] == "InternalError"
        assert keys(s3) == ([KEY["Key"]] if applied else [])

    def test_a_batch_that_fails_within_a_200_reports_each_key(self, fake: FakeS3, s3: Any) -> None:
        s3.put_object(Bucket="lake", Key="a")
        fake.faults.at(faults.ERROR_IN_200, operation="DeleteObjects")

        answer = s3.delete_objects(Bucket="lake", Delete={"Objects": [{"Key": "a"}, {"Key": "b"}]})
        assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [
            ("a", "InternalError"),
            ("b", "InternalError"),
        ]
        assert keys(s3) == ["a"]

    @pytest.mark.parametrize("after", [False, True])
    def test_a_crash_stops_every_later_request_until_the_fake_is_revived(
        self, fake: FakeS3, s3: Any, after: bool
    ) -> None:
        fault = faults.crash(Crash).after_the_effect() if after else faults.crash(Crash)
        fake.faults.at(fault, request=1)
        for _ in range(2):
            with pytest.raises(Crash):
                s3.put_object(**KEY, Body=b"")

        fake.revive()
        assert keys(s3) == ([KEY["Key"]] if after else [])


class TestState:
    def test_a_snapshot_holds_the_whole_state_and_can_be_restored(self, fake: FakeS3, s3: Any) -> None:
        complete = uploaded(s3, b"data")
        before = fake.snapshot()
        s3.complete_multipart_upload(**complete)
        assert fake.snapshot() != before

        fake.restore(before)
        assert fake.snapshot() == before
        assert keys(s3) == []
        s3.complete_multipart_upload(**complete)
        assert keys(s3) == [KEY["Key"]]

    def test_a_watcher_sees_the_state_before_and_after_each_request(self, fake: FakeS3, s3: Any) -> None:
        seen: list[tuple[str, str, int]] = []
        fake.watch = lambda moment: seen.append(
            (moment.seen.operation, moment.side, len(moment.state.objects))
        )
        s3.put_object(**KEY, Body=b"")
        s3.head_object(**KEY)

        assert seen == [
            ("PutObject", "before", 0),
            ("PutObject", "after", 1),
            ("HeadObject", "before", 1),
            ("HeadObject", "after", 1),
        ]
