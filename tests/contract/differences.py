"""Differences between S3 and stores that pass the contract, as questions with the answer of each store.

The store contract covers only behaviour that Lockgate relies on. This table lists behaviour that it must
not rely on: each question is put to S3 and its fake and to moto, and the answer must match the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from botocore.exceptions import ClientError


@dataclass(frozen=True)
class Bucket:
    """The bucket of one question.

    Attributes:
        client: boto3 client.
        folder: Folder that is new to this question; ends in a slash.
    """

    client: Any
    name: str
    folder: str

    def at(self, key: str = "a") -> dict[str, str]:
        return {"Bucket": self.name, "Key": self.folder + key}

    def uploaded(self, key: str = "a") -> dict[str, Any]:
        """Upload one part and return the arguments of its completion."""
        upload_id = self.client.create_multipart_upload(**self.at(key))["UploadId"]
        part = self.client.upload_part(**self.at(key), UploadId=upload_id, PartNumber=1, Body=b"data")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        return {**self.at(key), "UploadId": upload_id, "MultipartUpload": parts}


def outcome_of(call: Callable[..., object], **arguments: object) -> str:
    """Return the status and error code of a refused call, or `done`."""
    try:
        call(**arguments)
    except ClientError as fault:
        answer = fault.response
        return f"{answer['ResponseMetadata']['HTTPStatusCode']} {answer['Error'].get('Code')}"
    return "done"


def _complete_with_a_foreign_etag(bucket: Bucket) -> str:
    bucket.client.put_object(**bucket.at(), Body=b"there")
    return outcome_of(bucket.client.complete_multipart_upload, **bucket.uploaded(), IfMatch='"0"')


def _complete_with_a_wrong_size(bucket: Bucket) -> str:
    return outcome_of(bucket.client.complete_multipart_upload, **bucket.uploaded(), MpuObjectSize=1)


def _complete_twice(bucket: Bucket) -> str:
    complete = bucket.uploaded()
    bucket.client.complete_multipart_upload(**complete)
    return outcome_of(bucket.client.complete_multipart_upload, **complete)


def _complete_after_abort(bucket: Bucket) -> str:
    complete = bucket.uploaded()
    bucket.client.abort_multipart_upload(**bucket.at(), UploadId=complete["UploadId"])
    return outcome_of(bucket.client.complete_multipart_upload, **complete)


def _upload_after_abort(bucket: Bucket) -> str:
    complete = bucket.uploaded()
    gone = {**bucket.at(), "UploadId": complete["UploadId"]}
    bucket.client.abort_multipart_upload(**gone)
    return outcome_of(bucket.client.upload_part, **gone, PartNumber=1, Body=b"late")


def _copy_a_missing_object(bucket: Bucket) -> str:
    upload_id = bucket.client.create_multipart_upload(**bucket.at())["UploadId"]
    source = bucket.at("missing")
    copied = {**bucket.at(), "UploadId": upload_id, "PartNumber": 1, "CopySource": source}
    return outcome_of(bucket.client.upload_part_copy, **copied)


def _list_two_uploads_one_a_page(bucket: Bucket) -> str:
    for key in "ab":
        bucket.uploaded(key)
    page = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=bucket.folder, MaxUploads=1)
    return f"{len(page['Uploads'])}, {'more' if page['IsTruncated'] else 'no more'}"


def _ask_when_an_upload_was_begun(bucket: Bucket) -> str:
    bucket.uploaded()
    (upload,) = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=bucket.folder)["Uploads"]
    age = abs(datetime.now(UTC) - upload["Initiated"])
    return "just now" if age < timedelta(minutes=5) else f"in {upload['Initiated'].year}"


@dataclass(frozen=True)
class Difference:
    """One question.

    Attributes:
        ask: Function that asks the question and returns the answer in a word.
        s3: Answer of S3 and of the strict fake.
        moto: Answer of moto.
    """

    ask: Callable[[Bucket], str]
    s3: str
    moto: str


DIFFERENCES: Final[dict[str, Difference]] = {
    "If-Match on a completion": Difference(
        _complete_with_a_foreign_etag, s3="412 PreconditionFailed", moto="done"
    ),
    "x-amz-mp-object-size on a completion": Difference(
        _complete_with_a_wrong_size, s3="400 InvalidRequest", moto="done"
    ),
    "completing an upload twice": Difference(_complete_twice, s3="404 NoSuchUpload", moto="done"),
    "completing an aborted upload": Difference(_complete_after_abort, s3="404 NoSuchUpload", moto="500 500"),
    "a part for an aborted upload": Difference(_upload_after_abort, s3="404 NoSuchUpload", moto="500 500"),
    "a part from a missing object": Difference(_copy_a_missing_object, s3="404 NoSuchKey", moto="404 404"),
    "two uploads in pages of one": Difference(_list_two_uploads_one_a_page, s3="1, more", moto="2, no more"),
    "when an upload was begun": Difference(_ask_when_an_upload_was_begun, s3="just now", moto="in 2010"),
}
"""Real S3 has given both answers to a repeated completion, so code must accept either."""
