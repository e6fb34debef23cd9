"""The server: number each request, apply its fault, run its operation, and count it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from botocore.awsrequest import AWSResponse

from lockgate.storage_core.clock import Clock, SystemClock
from tests.support.fake_s3 import faults, listings, objects, uploads
from tests.support.fake_s3.bucket import Bucket
from tests.support.fake_s3.documents import deletions_of
from tests.support.fake_s3.faults import Fault, Faults
from tests.support.fake_s3.operations import check_known, operation_of
from tests.support.fake_s3.options import Options
from tests.support.fake_s3.refusal import Refusal
from tests.support.fake_s3.rounds import Rounds
from tests.support.fake_s3.state import State
from tests.support.fake_s3.wire import Answer, Request, error, error_document, read_request, to_botocore, xml

_ANSWERS: Final[Mapping[str, Callable[[Bucket, Request], Answer]]] = {
    "AbortMultipartUpload": uploads.abort_multipart_upload,
    "CompleteMultipartUpload": uploads.complete_multipart_upload,
    "CreateMultipartUpload": uploads.create_multipart_upload,
    "DeleteObject": objects.delete_object,
    "DeleteObjects": objects.delete_objects,
    "GetBucketLifecycleConfiguration": listings.get_lifecycle,
    "GetBucketVersioning": listings.get_versioning,
    "GetObject": objects.get_object,
    "HeadObject": objects.head_object,
    "ListMultipartUploads": listings.list_multipart_uploads,
    "ListObjectsV2": listings.list_objects_v2,
    "ListParts": listings.list_parts,
    "PutObject": objects.put_object,
    "UploadPart": uploads.upload_part,
    "UploadPartCopy": uploads.upload_part_copy,
}


@dataclass(frozen=True)
class Seen:
    """One received request.

    Attributes:
        number: Counted from 1.
        conditional: Whether it carried `If-Match` or `If-None-Match`.
    """

    number: int
    operation: str
    key: str
    conditional: bool

    def __str__(self) -> str:
        return f"request {self.number}, {self.operation} {self.key}"


@dataclass(frozen=True)
class Moment:
    """A moment before or after one request's effect, with a copy of the bucket's state."""

    seen: Seen
    side: Literal["before", "after"]
    state: State
    now_s: float

    def __str__(self) -> str:
        return f"{self.side} {self.seen}"


@dataclass
class FakeS3:
    """One bucket behind one endpoint.

    Attributes:
        bucket: Its name; there is no other.
        clock: Gives `LastModified`, `Initiated` and `Date`.
        faults: Faults to inject.
        seen: Every received request, including refused ones.
        watch: Called before and after every request, within the store's lock.
        rounds: Holds requests that come together, to count requests in a row.
        lookalike: Answers first, where it does; see `tests.support.s3.lookalikes`.
    """

    bucket: str = "lake"
    options: Options = field(default_factory=Options)
    clock: Clock = field(default_factory=SystemClock)
    faults: Faults = field(default_factory=Faults)
    seen: list[Seen] = field(default_factory=list)
    watch: Callable[[Moment], None] | None = None
    rounds: Rounds | None = None
    lookalike: Callable[[Request], Answer | Refusal | None] | None = None

    def __post_init__(self) -> None:
        self._bucket = Bucket(self.options, self.clock)
        self._lock = threading.Lock()
        self._died_of: BaseException | None = None

    @property
    def requests(self) -> Counter[str]:
        """Return the number of requests by S3's operation name."""
        return Counter(seen.operation for seen in self.seen)

    def forget(self) -> None:
        """Forget the received requests: the next is number 1."""
        self.seen.clear()

    def snapshot(self) -> State:
        """Return a copy of the contents."""
        with self._lock:
            return self._bucket.state.copy()

    def restore(self, state: State) -> None:
        """Replace the contents."""
        with self._lock:
            self._bucket.state = state.copy()

    def behave(self, options: Options) -> None:
        """Change the options."""
        self.options = self._bucket.options = options

    def revive(self) -> None:
        """Respond again after a crash: later requests come from another process."""
        self._died_of = None

    def answer(self, prepared: Any) -> AWSResponse:
        """Answer one request of botocore's, or fail it as the network would."""
        request = read_request(prepared)
        name = operation_of(request)
        if self.rounds is not None:
            self.rounds.hold(f"{name} {request.key}")
        with self._lock:
            if self._died_of is not None:
                raise self._died_of
            seen = Seen(len(self.seen) + 1, name, request.key, _is_conditional(request))
            self.seen.append(seen)
            fault = self.faults.due(seen.number, name)
            self._look(seen, "before")
            answer = None if fault is not None and not fault.applied else self._act(name, request)
            self._look(seen, "after")
            if fault is not None:
                answer = self._strike(fault, seen, request)
        return to_botocore(request, answer or Answer(), self.clock.now_s())

    def _act(self, name: str, request: Request) -> Answer:
        try:
            if request.bucket != self.bucket:
                raise Refusal(404, "NoSuchBucket", "The specified bucket does not exist")
            played = self.lookalike(request) if self.lookalike else None
            if isinstance(played, Refusal):
                raise played
            if played is not None:
                return played
            check_known(name, request)
            return _ANSWERS[name](self._bucket, request)
        except Refusal as refusal:
            return error(refusal.status, refusal.code, refusal.message)

    def _strike(self, fault: Fault, seen: Seen, request: Request) -> Answer:
        if fault.crash is not None:
            self._died_of = fault.crash(f"{fault.name} at {seen}")
            raise self._died_of
        if fault.silence is not None:
            raise fault.silence(endpoint_url=request.url)
        if fault == faults.CONFLICT and seen.operation == "CompleteMultipartUpload":
            self._end_upload(request)
        if fault.status == 200:
            return _failed_inside(fault, seen.operation, request)
        return error(fault.status or 500, fault.code, f"{fault.name}, on purpose")

    def _end_upload(self, request: Request) -> None:
        """AWS on a conflict: begin again with a new upload."""
        if self.options.conflict_ends_upload:
            self._bucket.state.uploads.pop(request.query["uploadId"], None)

    def _look(self, seen: Seen, side: Literal["before", "after"]) -> None:
        if self.watch is not None:
            self.watch(Moment(seen, side, self._bucket.state.copy(), self.clock.now_s()))


def _failed_inside(fault: Fault, operation: str, request: Request) -> Answer:
    """A failure with status 200: a batch reports it for each key, any other request by an error document."""
    message = f"{fault.name}, on purpose"
    if operation != "DeleteObjects":
        return Answer(200, {"Content-Type": "application/xml"}, error_document(fault.code, message))
    failed = (objects.failed_deletion(one["Key"], fault.code, message) for one in deletions_of(request)[0])
    return Answer(body=xml("DeleteResult", *failed))


def _is_conditional(request: Request) -> bool:
    return "if-match" in request.headers or "if-none-match" in request.headers
