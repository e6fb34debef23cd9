"""A store in an S3 bucket, whose pending uploads are uncompleted multipart uploads."""

from __future__ import annotations

import base64
import copy
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self

from botocore.exceptions import ClientError, ReadTimeoutError

from lockgate.storage_core.concurrency import in_order
from lockgate.storage_core.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotAppliedError,
    ObjectNotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.ids import Token
from lockgate.storage_core.settings import MIB, Settings
from lockgate.storage_core.stores.protocol import (
    PAGE,
    Capabilities,
    CompletionSender,
    DeleteFailure,
    ObjectInfo,
    Part,
    PendingUpload,
    UploadInfo,
    check_key,
    check_parts,
    in_pages,
)
from lockgate.storage_core.stores.s3.answers import CutAnswerError, check_range
from lockgate.storage_core.stores.s3.clients import Clients, endpoint_of
from lockgate.storage_core.stores.s3.errors import is_code, scrubbed
from lockgate.storage_core.stores.s3.lifecycle import expiry_problem, rule_problem
from lockgate.storage_core.stores.s3.listings import object_pages, upload_pages
from lockgate.storage_core.stores.s3.request_policy import RequestPolicy

if TYPE_CHECKING:
    from types_boto3_s3.type_defs import (
        CompletedPartTypeDef,
        CompleteMultipartUploadRequestTypeDef,
        CreateMultipartUploadRequestTypeDef,
        GetObjectOutputTypeDef,
        GetObjectRequestTypeDef,
        HeadObjectOutputTypeDef,
        PutObjectRequestTypeDef,
        UploadPartRequestTypeDef,
    )

    from lockgate.storage_core.stores.s3.crt.client import CrtClient

TOKEN_METADATA: Final = "lockgate-token"  # noqa: S105 - name of a metadata entry


class S3Store:
    """A `Store` in a bucket, or below a prefix of it.

    Without a probe (`stores.probe`) it relies on conditional create and put, and on conditional delete only
    if no endpoint is configured, which means AWS.

    Attributes:
        url: `s3://bucket` or `s3://bucket/prefix`.
        bucket: Name of the bucket.
        capabilities: Capabilities that the store relies on.
        deletes_many: Whether DeleteObjects is tried: not after a refusal.
    """

    def __init__(self, bucket: str, prefix: str, settings: Settings) -> None:
        self.bucket = bucket
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self.capabilities = Capabilities(
            conditional_create=True,
            conditional_put=True,
            conditional_delete=endpoint_of(settings) is None,
            min_part_bytes=5 * MIB,
        )
        self.deletes_many = True
        self._requests = RequestPolicy(self.url, bucket, prefix, settings)
        self._settings = settings

    def with_capabilities(self, capabilities: Capabilities) -> Self:
        """Return a copy with these capabilities."""
        other = copy.copy(self)
        other.capabilities = capabilities
        return other

    def put(self, key: str, data: bytes, *, if_version: str | None = None) -> ObjectInfo:
        """Send PutObject, with `If-Match` for a version; see `Store.put`."""
        if if_version is None:
            with self._requests.repeating("PutObject", key) as clients:
                request = self._put_request(clients, key, data)
                return _object_info(key, len(data), clients.repeating.put_object(**request))
        if not self.capabilities.conditional_put:
            raise self._unsupported("replace only a given version", key)
        with self._requests.once("PutObject", key) as clients:
            request = self._put_request(clients, key, data)
            request["IfMatch"] = _quoted(if_version)
            try:
                return _object_info(key, len(data), clients.single.put_object(**request))
            except ClientError as error:
                if not is_code(error, "NoSuchKey"):
                    raise
        raise PreconditionFailedError(
            f"PutObject {self.url}/{key}: there is no object, so not version {if_version}; nothing was "
            "changed; read it and decide again"
        )

    def create(self, key: str, data: bytes) -> ObjectInfo:
        """Send PutObject once with `If-None-Match`; see `Store.create`."""
        with self._requests.once("PutObject", key, if_absent=True) as clients:
            request = self._put_request(clients, key, data)
            request["IfNoneMatch"] = "*"
            return _object_info(key, len(data), clients.single.put_object(**request))

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Send GetObject with a range, again if the body is incomplete; see `Store.get`."""
        if length == 0:
            self.head(key)
            return b""
        request: GetObjectRequestTypeDef = {"Bucket": self.bucket, "Key": self._requests.key(key)}
        if start or length is not None:
            request["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"

        def call(clients: Clients) -> bytes:
            try:
                if clients.asks_for_checksums:
                    request["ChecksumMode"] = "ENABLED"
                answer = clients.repeating.get_object(**request)
                data = _body(answer)
                check_range(answer, len(data), start, length, is_range="Range" in request)
                ignored = "Range" in request and answer["ResponseMetadata"]["HTTPStatusCode"] == 200
                return data[start:][:length] if ignored else data
            except ClientError as error:
                if not is_code(error, "InvalidRange", "416"):
                    raise
            return b""

        return self._requests.read("GetObject", key, call)

    def head(self, key: str) -> ObjectInfo:
        """Send HeadObject; see `Store.head`."""
        answer = self._head(key)
        token = answer["Metadata"].get(TOKEN_METADATA)
        return ObjectInfo(
            key=key,
            size=answer["ContentLength"],
            version=answer["ETag"].strip('"'),
            modified_s=answer["LastModified"].timestamp(),
            token=None if token is None else Token(token),
        )

    def _head(self, key: str) -> HeadObjectOutputTypeDef:
        name = self._requests.key(key)
        return self._requests.read(
            "HeadObject", key, lambda clients: clients.repeating.head_object(Bucket=self.bucket, Key=name)
        )

    def pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[ObjectInfo]]:
        """Send ListObjectsV2, one request for each page; see `Store.pages`."""
        yield from object_pages(self._requests, prefix, after=after, page_size=page_size)

    def delete(self, key: str, *, if_version: str | None = None) -> None:
        """Send DeleteObject, with `If-Match` for a version; see `Store.delete`."""
        if if_version is None:
            with self._requests.repeating("DeleteObject", key) as clients, _missing_allowed():
                clients.repeating.delete_object(Bucket=self.bucket, Key=self._requests.listed_key(key))
            return
        if not self.capabilities.conditional_delete:
            raise self._unsupported("delete only a given version", key)
        with self._requests.once("DeleteObject", key) as clients, _missing_allowed():
            clients.single.delete_object(
                Bucket=self.bucket, Key=self._requests.listed_key(key), IfMatch=_quoted(if_version)
            )

    def delete_many(self, keys: Sequence[str]) -> list[DeleteFailure]:
        """Send DeleteObjects, with up to 1,000 keys in each request; see `Store.delete_many`.

        Look-alikes lack it, or want a Content-MD5, which boto3 does not send: they get one DeleteObject each.
        """
        failures: list[DeleteFailure] = []
        for first in range(0, len(keys), PAGE):
            page = keys[first : first + PAGE]
            try:
                failures += self._delete_page(page) if self.deletes_many else self._delete_each(page)
            except (AccessDeniedError, StoreUnavailableError):
                raise
            except NotAppliedError:
                self.deletes_many = False
                failures += self._delete_each(page)
        return failures

    def begin_upload(
        self,
        key: str,
        token: Token,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
        copy_of: str | None = None,
    ) -> str:
        """Send CreateMultipartUpload with the token as metadata; see `Store.begin_upload`."""
        is_copied = False
        if copy_of is not None:
            source = self._head(copy_of)
            content_type, metadata = source.get("ContentType"), source["Metadata"]
            is_copied = source["ContentLength"] > 0  # no part is a copy of an empty object
        request: CreateMultipartUploadRequestTypeDef = {
            "Bucket": self.bucket,
            "Key": self._requests.key(key),
            "Metadata": {**(metadata or {}), TOKEN_METADATA: token},
        }
        self._add_attributes(request)
        if content_type:
            request["ContentType"] = content_type
        if self._settings.s3_storage_class:
            request["StorageClass"] = self._settings.s3_storage_class  # type: ignore[typeddict-item] # S3 checks
        with self._requests.repeating("CreateMultipartUpload", key) as clients:
            # A completion must have the checksum of each part, and not every server returns that of a copy.
            if clients.sends_checksums and not is_copied:
                request["ChecksumAlgorithm"] = "CRC32"
            return clients.repeating.create_multipart_upload(**request)["UploadId"]

    def put_part(self, key: str, upload_id: str, number: int, offset: int, data: bytes) -> Part:  # noqa: ARG002
        """Send UploadPart with the part's CRC-32; S3 does not need the offset; see `Store.put_part`."""
        self._check_number(key, number)
        request: UploadPartRequestTypeDef = {
            "Bucket": self.bucket,
            "Key": self._requests.key(key),
            "UploadId": upload_id,
            "PartNumber": number,
            "Body": data,
        }
        with self._requests.repeating("UploadPart", key) as clients:
            if clients.sends_checksums:
                request["ChecksumCRC32"] = _crc32(data)
            answer = clients.repeating.upload_part(**request)
            # A store that keeps no checksums returns none, and refuses a completion that contains one.
            checksum = answer.get("ChecksumCRC32") or None
            if checksum not in {None, request.get("ChecksumCRC32", checksum)}:
                raise CutAnswerError(error="it names another checksum than the part's")
            return Part(number=number, size=len(data), etag=answer["ETag"], checksum=checksum)

    def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        offset: int,  # noqa: ARG002
        *,
        source: str,
        start: int,
        length: int,
    ) -> Part:
        """Send UploadPartCopy with a range; see `Store.copy_part`."""
        self._check_number(key, number)
        with self._requests.repeating("UploadPartCopy", key) as clients:
            answer = clients.repeating.upload_part_copy(
                Bucket=self.bucket,
                Key=self._requests.key(key),
                UploadId=upload_id,
                PartNumber=number,
                CopySource={"Bucket": self.bucket, "Key": self._requests.key(source)},
                CopySourceRange=f"bytes={start}-{start + length - 1}",
            )["CopyPartResult"]
            checksum = answer.get("ChecksumCRC32") or None
            return Part(number=number, size=length, etag=answer["ETag"], checksum=checksum)

    def seal_upload(self, key: str, upload_id: str, token: Token, parts: Sequence[Part]) -> PendingUpload:
        """Return the record of the parts, which S3 has already made durable; see `Store.seal_upload`."""
        ordered = check_parts(check_key(key), parts)
        size = sum(part.size for part in ordered)
        return PendingUpload(key=key, upload_id=upload_id, token=token, size=size, parts=ordered)

    def complete_upload(self, pending: PendingUpload, *, if_absent: bool = False) -> ObjectInfo:
        """Send CompleteMultipartUpload once; see `Store.complete_upload`."""
        request = self._completion(pending, if_absent=if_absent)
        with self._requests.once("CompleteMultipartUpload", pending.key, if_absent=if_absent) as clients:
            answer = clients.single.complete_multipart_upload(**request)
            return _object_info(pending.key, pending.size, answer, token=pending.token)

    def completion_sender(self) -> CompletionSender | None:
        """Return what sends CompleteMultipartUpload through AWS CRT; see `Store.completion_sender`."""

        def found(clients: Clients) -> CrtClient | None:
            return clients.ahead if clients.ahead and clients.ahead.reaches(self.bucket) else None

        ahead = self._requests.read("CompleteMultipartUpload", "", found)
        if ahead is None:
            return None

        def send(
            pending: PendingUpload, *, if_absent: bool, arrived: Callable[[], None]
        ) -> Callable[[], ObjectInfo]:
            request = self._completion(pending, if_absent=if_absent)
            once = partial(self._requests.once, "CompleteMultipartUpload", pending.key, if_absent=if_absent)
            with once():
                answer = ahead.send("complete_multipart_upload", arrived, **request)

            def completed() -> ObjectInfo:
                with once():
                    return _object_info(pending.key, pending.size, answer(), token=pending.token)

            return completed

        return CompletionSender(send, ahead.patience_s)

    def _completion(
        self, pending: PendingUpload, *, if_absent: bool
    ) -> CompleteMultipartUploadRequestTypeDef:
        request: CompleteMultipartUploadRequestTypeDef = {
            "Bucket": self.bucket,
            "Key": self._requests.key(pending.key),
            "UploadId": pending.upload_id,
            "MultipartUpload": {"Parts": [_completed(part) for part in pending.parts]},
        }
        if if_absent:
            request["IfNoneMatch"] = "*"
        return request

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Send AbortMultipartUpload; see `Store.abort_upload`."""
        with (
            suppress(UploadGoneError),
            self._requests.repeating("AbortMultipartUpload", key) as clients,
        ):
            clients.repeating.abort_multipart_upload(
                Bucket=self.bucket, Key=self._requests.listed_key(key), UploadId=upload_id
            )

    def holds(self, pending: PendingUpload) -> bool:
        """Send HeadObject, and compare owner token and size; see `Store.holds`."""
        try:
            found = self.head(pending.key)
        except ObjectNotFoundError:
            return False
        return found.token == pending.token and found.size == pending.size

    def upload_bytes(self, key: str, upload_id: str) -> int:
        """Send ListParts, one request for each 1,000 parts; see `Store.upload_bytes`."""
        name = self._requests.listed_key(key)

        def call(clients: Clients) -> int:
            pages = clients.repeating.get_paginator("list_parts").paginate(
                Bucket=self.bucket, Key=name, UploadId=upload_id
            )
            return sum(part["Size"] for page in pages for part in page.get("Parts", []))

        return self._requests.read("ListParts", key, call)

    def upload_pages(
        self, prefix: str = "", *, after: str = "", page_size: int = PAGE
    ) -> Iterator[Sequence[UploadInfo]]:
        """Send ListMultipartUploads; see `Store.upload_pages`."""
        for page in upload_pages(self._requests, prefix, after=after):
            yield from in_pages(page, page_size)

    def upload_expiry_problem(self) -> str:
        """Return the problem of the bucket's lifecycle rules for open uploads; empty if there is none.

        Raises:
            AccessDeniedError: The credentials may not read the rules.
        """
        rules = self._lifecycle_rules()
        return rule_problem(rules, self._requests.prefix, longest_job_s=self._settings.longest_job_s)

    def file_expiry_problem(self) -> str:
        """Return what the bucket's lifecycle rules and versions mean for files; empty if nothing.

        Raises:
            AccessDeniedError: The credentials may not read one of them.
        """
        answer = self._requests.read(
            "GetBucketVersioning",
            "",
            lambda clients: clients.repeating.get_bucket_versioning(Bucket=self.bucket),
        )
        keeps_versions = answer.get("Status") == "Enabled"
        return expiry_problem(self._lifecycle_rules(), self._requests.prefix, keeps_versions=keeps_versions)

    def _lifecycle_rules(self) -> Sequence[Mapping[str, Any]]:
        def call(clients: Clients) -> Sequence[Mapping[str, Any]]:
            try:
                answer = clients.repeating.get_bucket_lifecycle_configuration(Bucket=self.bucket)
                return answer.get("Rules", [])  # rclone answers with a listing
            except ClientError as error:
                if not is_code(error, "NoSuchLifecycleConfiguration"):
                    raise
            return []

        return self._requests.read("GetBucketLifecycleConfiguration", "", call)

    def _delete_page(self, keys: Sequence[str]) -> list[DeleteFailure]:
        names: dict[str, str] = {}
        failures: list[DeleteFailure] = []
        for key in keys:
            try:
                names[self._requests.key(key)] = key
            except InvalidInputError as error:
                failures.append(DeleteFailure(key=key, reason=str(error)))
        if not names:
            return failures
        with self._requests.repeating("DeleteObjects", "") as clients:
            answer = clients.repeating.delete_objects(
                Bucket=self.bucket, Delete={"Objects": [{"Key": name} for name in names], "Quiet": True}
            )
            for refused in answer.get("Errors", []):
                reason = scrubbed(
                    f"{refused.get('Code', 'an error')} ({refused.get('Message', 'no message')})"
                )
                failures.append(DeleteFailure(key=names[refused["Key"]], reason=reason))
        return failures

    def _delete_each(self, keys: Sequence[str]) -> list[DeleteFailure]:
        def delete(key: str) -> list[DeleteFailure]:
            try:
                self.delete(key)
            except (AccessDeniedError, InvalidInputError) as error:
                return [DeleteFailure(key=key, reason=str(error))]
            return []

        return [failure for found in in_order(delete, keys, self._settings.far_calls) for failure in found]

    def _check_number(self, key: str, number: int) -> None:
        if not 1 <= number <= self.capabilities.max_parts:
            raise InvalidInputError(
                f"put part {number} of {key!r}: numbers go from 1 to {self.capabilities.max_parts}; "
                "use larger parts (LOCKGATE_PART_BYTES)"
            )

    def _put_request(self, clients: Clients, key: str, data: bytes) -> PutObjectRequestTypeDef:
        request: PutObjectRequestTypeDef = {
            "Bucket": self.bucket,
            "Key": self._requests.key(key),
            "Body": data,
        }
        self._add_attributes(request)
        if clients.sends_checksums:
            request["ChecksumCRC32"] = _crc32(data)
        return request

    def _add_attributes(self, request: PutObjectRequestTypeDef | CreateMultipartUploadRequestTypeDef) -> None:
        """Add what a bucket's policy may demand of each request that makes an object."""
        settings = self._settings
        if settings.s3_sse or settings.s3_sse_kms_key_id:
            request["ServerSideEncryption"] = settings.s3_sse or "aws:kms"
        if settings.s3_sse_kms_key_id:
            request["SSEKMSKeyId"] = settings.s3_sse_kms_key_id
        if settings.s3_acl:
            request["ACL"] = settings.s3_acl

    def _unsupported(self, what: str, key: str) -> UnsupportedStoreError:
        return UnsupportedStoreError(
            f"{self.url}/{key}: this store is not known to {what}; nothing was changed; "
            "see `lockgate store check`"
        )


@contextmanager
def _missing_allowed() -> Iterator[None]:
    """Take the error of a delete that found no object for success; AWS reports it for a version only."""
    try:
        yield
    except ClientError as error:
        if not is_code(error, "NoSuchKey"):
            raise


def _object_info(key: str, size: int, answer: Mapping[str, Any], *, token: Token | None = None) -> ObjectInfo:
    # The response's date saves a HEAD request for every file of a job.
    modified_s = _seconds(answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")) or time.time()
    return ObjectInfo(
        key=key, size=size, version=answer["ETag"].strip('"'), modified_s=modified_s, token=token
    )


def _body(answer: GetObjectOutputTypeDef) -> bytes:
    """Return the body; if it stalls, that is a cut answer: boto3 repeats only until an answer has begun."""
    try:
        return answer["Body"].read()
    except ReadTimeoutError as error:
        raise CutAnswerError(error=error) from None


@lru_cache(maxsize=16)
def _seconds(date: str) -> float | None:
    """Return the time of a date, which all answers of one second share; None if it is not one."""
    try:
        return parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None


def _completed(part: Part) -> CompletedPartTypeDef:
    completed: CompletedPartTypeDef = {"PartNumber": part.number, "ETag": part.etag}
    if part.checksum is not None:
        completed["ChecksumCRC32"] = part.checksum
    return completed


def _quoted(version: str) -> str:
    return f'"{version}"'


def _crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
