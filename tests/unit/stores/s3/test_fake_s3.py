"""The strict fake S3, called by boto3: behaviour that AWS documents or leaves open, and faults."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
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
    def test_a_create_of_an_existing_object_is_refused_and_changes_nothing(self, s3: Any) -> None:
        s3.put_object(**KEY, Body=b"first", IfNoneMatch="*")

        assert refusal(s3.put_object, **KEY, Body=b"second", IfNoneMatch="*") == (412, "PreconditionFailed")
        assert s3.get_object(**KEY)["Body"].read() == b"first"

    def test_a_version_is_replaced_and_deleted_only_by_its_etag(self, s3: Any) -> None:
        assert refusal(s3.put_object, **KEY, Body=b"x", IfMatch='"0"') == (404, "NoSuchKey")
        assert refusal(s3.delete_object, **KEY, IfMatch='"0"') == (404, "NoSuchKey")
        first = s3.put_object(**KEY, Body=b"first")["ETag"]
        second = s3.put_object(**KEY, Body=b"second", IfMatch=first)["ETag"]

        assert refusal(s3.put_object, **KEY, Body=b"x", IfMatch=first) == (412, "PreconditionFailed")
        assert refusal(s3.delete_object, **KEY, IfMatch=first) == (412, "PreconditionFailed")
        s3.delete_object(**KEY, IfMatch=second)
        assert keys(s3) == []

    def test_a_batch_deletes_only_the_versions_that_it_names(self, s3: Any) -> None:
        etags = {key: s3.put_object(Bucket="lake", Key=key, Body=key.encode())["ETag"] for key in "abc"}
        objects = [{"Key": "a", "ETag": etags["a"]}, {"Key": "b", "ETag": etags["a"]}, {"Key": "c"}]

        answer = s3.delete_objects(Bucket="lake", Delete={"Objects": objects})
        assert [one["Key"] for one in answer["Deleted"]] == ["a", "c"]
        assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("b", "PreconditionFailed")]
        assert keys(s3) == ["b"]

    def test_a_completion_keeps_its_condition_and_a_412_leaves_the_upload_open(self, s3: Any) -> None:
        etag = s3.put_object(**KEY, Body=b"first")["ETag"]
        complete = uploaded(s3, b"second")

        for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"0"'}):
            assert refusal(s3.complete_multipart_upload, **complete, **condition) == (
                412,
                "PreconditionFailed",
            )
        s3.complete_multipart_upload(**complete, IfMatch=etag)
        assert s3.get_object(**KEY)["Body"].read() == b"second"

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

    def test_a_repeated_completion_gets_no_such_upload_on_other_stores(self, s3: Any) -> None:
        complete = uploaded(s3, b"data")
        s3.complete_multipart_upload(**complete)

        assert refusal(s3.complete_multipart_upload, **complete) == (404, "NoSuchUpload")
        assert s3.get_object(**KEY)["Body"].read() == b"data"

    def test_an_aborted_upload_is_gone_for_every_call(self, s3: Any) -> None:
        complete = uploaded(s3, b"data")
        one = {**KEY, "UploadId": complete["UploadId"]}
        s3.abort_multipart_upload(**one)

        gone = (404, "NoSuchUpload")
        assert refusal(s3.complete_multipart_upload, **complete) == gone
        assert refusal(s3.upload_part, **one, PartNumber=1, Body=b"") == gone
        assert refusal(s3.list_parts, **one) == gone
        assert refusal(s3.abort_multipart_upload, **one) == gone

    def test_parts_are_named_in_order_by_their_etags_and_checksums(self, s3: Any) -> None:
        complete = uploaded(s3, b"1" * PART, b"2", ChecksumAlgorithm="CRC32")
        one, two = complete["MultipartUpload"]["Parts"]
        third = s3.upload_part(**KEY, UploadId=complete["UploadId"], PartNumber=3, Body=b"3")
        three = {"PartNumber": 3, "ETag": third["ETag"], "ChecksumCRC32": crc32(b"3")}
        cases = {
            "InvalidPartOrder": [two, one],
            "InvalidPart": [{**one, "ETag": two["ETag"]}, two],
            "InvalidRequest": [{"PartNumber": 1, "ETag": one["ETag"]}, two],
            "EntityTooSmall": [one, two, three],
        }
        for code, parts in cases.items():
            refused = refusal(
                s3.complete_multipart_upload, **{**complete, "MultipartUpload": {"Parts": parts}}
            )
            assert refused == (400, code)
        assert refusal(s3.complete_multipart_upload, **complete, MpuObjectSize=1) == (400, "InvalidRequest")
        s3.complete_multipart_upload(**complete, MpuObjectSize=PART + 1)
        assert s3.head_object(**KEY)["ETag"].endswith('-2"')

    def test_metadata_type_and_storage_class_survive_the_completion(self, s3: Any) -> None:
        attributes = {"Metadata": {"token": "t"}, "ContentType": "text/csv", "StorageClass": "STANDARD_IA"}
        s3.complete_multipart_upload(**uploaded(s3, b"data", **attributes))

        found = s3.head_object(**KEY)
        assert {name: found[name] for name in attributes} == attributes
        refused = refusal(s3.create_multipart_upload, **KEY, StorageClass="SHELF")
        assert refused == (400, "InvalidStorageClass")

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


class TestObjects:
    def test_a_wrong_checksum_is_refused(self, s3: Any) -> None:
        assert refusal(s3.put_object, **KEY, Body=b"x", ChecksumCRC32=crc32(b"y")) == (400, "BadDigest")
        assert refusal(s3.put_object, **KEY, Body=b"x", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==") == (
            400,
            "BadDigest",
        )
        assert keys(s3) == []

    def test_ranges_are_truncated_at_the_end_and_refused_beyond_it(self, s3: Any) -> None:
        s3.put_object(**KEY, Body=b"0123456789")

        assert s3.get_object(**KEY, Range="bytes=7-99")["Body"].read() == b"789"
        assert s3.get_object(**KEY, Range="bytes=7-")["ContentRange"] == "bytes 7-9/10"
        assert refusal(s3.get_object, **KEY, Range="bytes=10-") == (416, "InvalidRange")

    def test_the_etag_of_an_encrypted_object_is_not_the_digest_of_its_bytes(self, s3: Any) -> None:
        plain = s3.put_object(**KEY, Body=b"x")["ETag"]
        how = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "key"}

        assert s3.put_object(**KEY, Body=b"x")["ETag"] == plain
        assert s3.put_object(**KEY, Body=b"x", **how)["ETag"] != plain
        assert s3.head_object(**KEY)["SSEKMSKeyId"] == "key"

    def test_the_test_controls_the_clock(self, fake: FakeS3, s3: Any) -> None:
        s3.put_object(**KEY, Body=b"")
        upload_id = s3.create_multipart_upload(**KEY)["UploadId"]
        fake.clock.sleep(86_400)

        then = datetime.fromtimestamp(1_700_000_000, UTC)
        assert s3.head_object(**KEY)["LastModified"] == then
        assert s3.list_objects_v2(Bucket="lake")["Contents"][0]["LastModified"] == then
        (upload,) = s3.list_multipart_uploads(Bucket="lake")["Uploads"]
        assert (upload["Initiated"], upload["UploadId"]) == (then, upload_id)


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

    def test_uploads_of_one_key_continue_across_pages_by_their_ids(self, fake: FakeS3, s3: Any) -> None:
        ids = []
        for key in ("a", "b", "b", "b", "c"):
            ids.append(s3.create_multipart_upload(Bucket="lake", Key=key)["UploadId"])
            fake.clock.sleep(1)
        fake.behave(Options(page_size=1))
        pages = list(s3.get_paginator("list_multipart_uploads").paginate(Bucket="lake"))

        assert [page["Uploads"][0]["UploadId"] for page in pages] == ids
        # Without the id, S3 continues after the key; the id alone is ignored.
        behind = s3.list_multipart_uploads(Bucket="lake", KeyMarker="b")["Uploads"]
        alone = s3.list_multipart_uploads(Bucket="lake", UploadIdMarker=ids[3])["Uploads"]
        assert [behind[0]["Key"], alone[0]["Key"]] == ["c", "a"]

    def test_parts_are_listed_in_pages(self, fake: FakeS3, s3: Any) -> None:
        complete = uploaded(s3, b"1", b"22", b"333")
        fake.behave(Options(page_size=2))
        one = {**KEY, "UploadId": complete["UploadId"]}

        pages = list(s3.get_paginator("list_parts").paginate(**one))
        assert [[part["Size"] for part in page["Parts"]] for page in pages] == [[1, 2], [3]]


class TestStrictness:
    def test_unknown_parameters_and_operations_are_refused(self, s3: Any) -> None:
        s3.put_object(**KEY, Body=b"")

        unknown = (501, "NotImplemented")
        assert refusal(s3.get_object_tagging, **KEY) == unknown
        assert refusal(s3.list_objects_v2, Bucket="lake", Delimiter="/") == unknown
        assert refusal(s3.put_object, **KEY, Body=b"", Tagging="a=b") == unknown
        assert refusal(s3.get_object, **KEY, IfMatch='"0"') == unknown
        assert refusal(s3.put_object, **KEY, Body=b"", ChecksumAlgorithm="SHA256") == unknown

    def test_another_bucket_and_a_name_too_long_are_refused(self, s3: Any) -> None:
        assert refusal(s3.list_objects_v2, Bucket="sea") == (404, "NoSuchBucket")
        assert refusal(s3.put_object, Bucket="lake", Key="k" * 1025) == (400, "KeyTooLongError")
        assert refusal(s3.put_object, **KEY, Metadata={"m": "x" * 2048}) == (400, "MetadataTooLarge")

    def test_an_endpoint_that_is_no_longer_served_cannot_be_reached(self, fake: FakeS3) -> None:
        with served(fake) as endpoint, client_of(endpoint) as s3:
            s3.put_object(**KEY, Body=b"")
        with client_of(endpoint) as s3, pytest.raises(EndpointConnectionError):
            s3.get_object(**KEY)


class TestFaults:
    def test_a_fault_affects_only_the_nth_request_of_an_operation(self, fake: FakeS3, s3: Any) -> None:
        fake.faults.at(faults.SLOW_DOWN, operation="PutObject", nth=2, times=2)
        s3.put_object(**KEY, Body=b"1")
        s3.head_object(**KEY)

        for _ in range(2):
            assert refusal(s3.put_object, **KEY, Body=b"2") == (503, "SlowDown")
        assert s3.get_object(**KEY)["Body"].read() == b"1"
        s3.put_object(**KEY, Body=b"3")

    def test_a_fault_affects_a_request_by_its_number(self, fake: FakeS3, s3: Any) -> None:
        fake.faults.at(faults.INTERNAL_ERROR.after_the_effect(), request=2)
        s3.put_object(**KEY, Body=b"1")

        assert refusal(s3.put_object, **KEY, Body=b"2") == (500, "InternalError")
        assert s3.get_object(**KEY)["Body"].read() == b"2"

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

    def test_boto3_retries_a_request_without_a_response_as_on_a_real_socket(self, fake: FakeS3) -> None:
        fake.faults.at(faults.CLOSED.after_the_effect(), operation="CreateMultipartUpload")
        with served(fake) as endpoint, client_of(endpoint, tries=2) as s3:
            s3.create_multipart_upload(**KEY)

            assert fake.requests["CreateMultipartUpload"] == 2
            assert len(s3.list_multipart_uploads(Bucket="lake")["Uploads"]) == 2

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
