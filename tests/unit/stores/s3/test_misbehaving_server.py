"""An S3 server that misbehaves at every byte of an answer.

No client believes a cut answer, and none raises errors of its libraries.
"""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from msgspec import structs

from lockgate.storage_core.errors import (
    AccessDeniedError,
    InvalidInputError,
    LockgateError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UploadGoneError,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store
from tests.support.s3.misbehaving_server import (
    Manner,
    RudeServer,
    answer,
    hangs_up,
    refusal,
    sends,
)
from tests.support.s3.store_calls import CALLS, DATE, OBJECT, UPLOAD, document, success
from tests.support.soak import rounds

pytestmark = pytest.mark.slow


def _cut(answer: bytes, at: int, *, resets: bool) -> Manner:
    def respond(connection: socket.socket) -> bool:
        connection.sendall(answer[:at])
        if resets:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        return False

    return respond


@pytest.mark.parametrize("resets", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("name", CALLS)
def test_a_cut_answer_is_never_believed(server: RudeServer, store: Store, name: str, *, resets: bool) -> None:
    call = CALLS[name]
    server.manners = [sends(call.answer, keeps=True)]
    expected = call.make(store)
    silence = OutcomeUnknownError if call.changes else StoreUnavailableError
    end = call.answer.index(b"\r\n\r\n") + 4 if name == "head" else len(call.answer)
    for at in range(0, end, rounds(7, 1)):
        server.manners = [_cut(call.answer, at, resets=resets)]
        try:
            result = call.make(store)
        except LockgateError as error:
            assert type(error) is silence, (at, error)  # noqa: PT017 - which of two outcomes is allowed
        else:
            # http.client takes a connection that ends in the head for the head's end: what it says is whole.
            assert result == expected, at
            assert at < call.answer.index(b"\r\n\r\n") + 4, at


MISBEHAVIOURS: Final[dict[str, Callable[[bytes], Manner]]] = {
    "a byte at a time": lambda answer: sends(answer, piece=1, keeps=True),
    "surplus bytes": lambda answer: sends(answer + b"surplus"),
    "an interim answer": lambda answer: sends(
        b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + answer, keeps=True
    ),
}


@pytest.mark.parametrize("manner", MISBEHAVIOURS)
@pytest.mark.parametrize("name", CALLS)
def test_an_answer_in_an_unusual_manner_is_understood(
    server: RudeServer, store: Store, name: str, manner: str
) -> None:
    call = CALLS[name]
    server.manners = [sends(call.answer, keeps=True)]
    expected = call.make(store)
    server.manners = [MISBEHAVIOURS[manner](call.answer), sends(call.answer, keeps=True)]
    try:
        assert call.make(store) == expected
    except LockgateError as error:
        # http.client takes an interim answer for the last one: boto3's calls have no answer then.
        assert "interim answer" in str(error)  # noqa: PT017 - which of two outcomes is allowed
        assert manner == "an interim answer"
        server.manners = [sends(call.answer, keeps=True)]
    try:
        assert call.make(store) == expected, "the rest of an answer was taken for the next one"
    except (OutcomeUnknownError, StoreUnavailableError):
        # The client may not have noticed yet that the server closed the connection.
        assert manner == "surplus bytes"


LISTINGS: Final = {
    "a prefix of the namespace": (
        b'<n:ListMultipartUploadsResult xmlns:n="http://s3.amazonaws.com/doc/2006-03-01/">'
        b"<n:Upload><n:Key>a b</n:Key><n:UploadId>u</n:UploadId>"
        b"<n:Initiated>2026-11-22T10:00:00.000Z</n:Initiated></n:Upload></n:ListMultipartUploadsResult>"
    ),
    "white space and owners": (
        b"<ListMultipartUploadsResult>\n  <IsTruncated>false</IsTruncated>\n"
        b"  <Upload>\n    <Owner>\n<ID>o</ID></Owner>\n    <Key>a b</Key>\n    <UploadId>u</UploadId>\n"
        b"    <Initiated>2026-11-22T10:00:00.000Z</Initiated>\n  </Upload>\n</ListMultipartUploadsResult>\n"
    ),
    "entities": (
        b"<ListMultipartUploadsResult><Upload><Key>a&#x20;b</Key><UploadId>&#117;</UploadId>"
        b"<Initiated>2026-11-22T10:00:00Z</Initiated></Upload></ListMultipartUploadsResult>"
    ),
    "unknown fields, and common prefixes": (
        b"<ListMultipartUploadsResult><New>1</New><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>"
        b"<CommonPrefixes/><Upload><New><Deep/></New><Key>a b</Key><UploadId>u</UploadId>"
        b"<Initiated>2026-11-22T10:00:00Z</Initiated></Upload></ListMultipartUploadsResult>"
    ),
}


@pytest.mark.parametrize("document", LISTINGS.values(), ids=LISTINGS)
def test_both_clients_read_the_same_uploads(server: RudeServer, store: Store, document: bytes) -> None:
    # Kept: boto3, which tries once here, may not notice in time that the last document's connection ended.
    server.manners = [sends(success(DATE, document), keeps=True)]
    (found,) = [upload for page in store.upload_pages() for upload in page]
    assert (found.key, found.upload_id, found.begun_s) == ("a b", "u", 1795341600.0)


@pytest.mark.parametrize("name", CALLS)
def test_a_refusal_that_names_the_load_is_no_success(
    server: RudeServer, store: Store, settings: Settings, name: str
) -> None:
    server.manners = [refusal("503 Slow Down", "SlowDown")]
    # CRT does not hand over the answer: at an endpoint that is not AWS a proxy may have sent it.
    unknown = settings.s3_client == "crt" and CALLS[name].changes and not CALLS[name].boto3
    with pytest.raises(OutcomeUnknownError if unknown else StoreUnavailableError):
        CALLS[name].make(store)


@pytest.mark.parametrize("name", ["begin", "complete", "complete ahead", "delete many"])
def test_an_error_inside_a_200_leaves_the_outcome_unknown(
    server: RudeServer, store: Store, name: str
) -> None:
    server.manners = [refusal("200 OK", "InternalError")]
    with pytest.raises(OutcomeUnknownError):
        CALLS[name].make(store)


@pytest.mark.parametrize("name", ["get", "put", "list", "complete", "complete ahead"])
def test_an_answer_that_does_not_come_is_silence(server: RudeServer, settings: Settings, name: str) -> None:
    call = CALLS[name]
    store = open_store("s3://lake", structs.replace(settings, s3_timeout_s=0.3))

    over = threading.Event()

    def says_nothing(connection: socket.socket) -> bool:
        over.wait(20)
        return False

    server.manners = [says_nothing]
    try:
        with pytest.raises(OutcomeUnknownError if call.changes else StoreUnavailableError):
            call.make(store)
    finally:
        over.set()
        server.wait()


@pytest.mark.parametrize("inner", [b"", b"<LastModified>2026-11-22T10:00:00.000Z</LastModified>"])
def test_a_copied_part_without_an_etag_has_an_unknown_outcome(
    server: RudeServer, settings: Settings, inner: bytes
) -> None:
    server.manners = [sends(document(b"CopyPartResult", inner), keeps=True)]
    with pytest.raises(OutcomeUnknownError, match="UploadPartCopy"):
        open_store("s3://lake", settings).copy_part("k", "u", 1, 0, source="s", start=0, length=4)


@pytest.mark.parametrize(
    ("start", "length", "named"),
    [
        (5, 3, b"bytes 0-2/10"),
        (5, 3, b"bytes 5-6/10"),
        (5, 3, b"bytes 5-8/10"),
        (5, 3, b"bytes 5-7"),
        (5, None, b"bytes 5-7/10"),
        (0, None, b"bytes 0-2/10"),
    ],
)
def test_other_bytes_than_those_asked_for_are_not_returned(
    server: RudeServer, settings: Settings, start: int, length: int | None, named: bytes
) -> None:
    text = b"HTTP/1.1 206 Partial Content\r\n%bContent-Range: %b\r\nContent-Length: 3\r\n\r\nabc" % (
        OBJECT,
        named,
    )
    server.manners = [sends(text, keeps=True)]
    with pytest.raises(StoreUnavailableError):
        open_store("s3://lake", settings).get("k", start=start, length=length)


@pytest.mark.parametrize(
    ("start", "length", "named"),
    [(5, 3, b"bytes 5-7/10"), (7, 30, b"bytes 7-9/10"), (7, None, b"bytes 7-9/10")],
)
def test_the_bytes_asked_for_are_returned(
    server: RudeServer, settings: Settings, start: int, length: int | None, named: bytes
) -> None:
    text = b"HTTP/1.1 206 Partial Content\r\n%bContent-Range: %b\r\nContent-Length: 3\r\n\r\nabc"
    server.manners = [sends(text % (OBJECT, named), keeps=True)]
    assert open_store("s3://lake", settings).get("k", start=start, length=length) == b"abc"


@pytest.mark.parametrize(
    ("call", "root", "inner"),
    [
        (
            lambda store: store.pages(),
            b"ListBucketResult",
            b"<IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>",
        ),
        (
            lambda store: store.upload_pages(),
            b"ListMultipartUploadsResult",
            b"<IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
            b"<NextUploadIdMarker>u</NextUploadIdMarker>" + UPLOAD,
        ),
        (
            lambda store: store.upload_pages(),
            b"ListMultipartUploadsResult",
            b"<IsTruncated>true</IsTruncated>" + UPLOAD + UPLOAD.replace(b">k<", b">l<"),
        ),
    ],
    ids=["objects", "uploads of one key", "uploads"],
)
def test_a_listing_that_repeats_its_page_ends(
    server: RudeServer,
    settings: Settings,
    call: Callable[[Store], Iterator[object]],
    root: bytes,
    inner: bytes,
) -> None:
    server.manners = [sends(document(root, inner), keeps=True)] * 3
    with pytest.raises(StoreUnavailableError, match="same page"):
        list(call(open_store("s3://lake", settings)))


@pytest.mark.parametrize("name", ["put", "create", "part", "delete", "abort"])
def test_an_error_inside_a_200_has_an_unknown_outcome(
    server: RudeServer, settings: Settings, name: str
) -> None:
    body = b"<Error><Code>InternalError</Code><Message>no</Message></Error>"
    server.manners = [sends(success(OBJECT, body), keeps=True)]
    with pytest.raises(OutcomeUnknownError):
        CALLS[name].make(open_store("s3://lake", settings))


@pytest.mark.parametrize(
    ("name", "bytes_"), [("crc32", 4), ("crc32c", 4), ("crc64nvme", 8), ("sha1", 20), ("sha256", 32)]
)
def test_a_body_that_differs_from_its_checksum_is_not_returned(
    server: RudeServer, settings: Settings, name: str, bytes_: int
) -> None:
    header = b"x-amz-checksum-%b: %b\r\n" % (name.encode(), base64.b64encode(bytes(bytes_)))
    server.manners = [sends(success(OBJECT + header, b"data"), keeps=True)]
    with pytest.raises(StoreUnavailableError):
        open_store("s3://lake", settings).get("k")


def test_a_part_with_another_checksum_than_it_was_sent_with_has_an_unknown_outcome(
    server: RudeServer, settings: Settings
) -> None:
    header = b"x-amz-checksum-crc32: AAAAAA==\r\n"
    server.manners = [sends(success(OBJECT + header), keeps=True)]
    with pytest.raises(OutcomeUnknownError, match="checksum"):
        CALLS["part"].make(open_store("s3://lake", settings))


@pytest.mark.parametrize(
    "endpoint",
    ["ftp://x/", "http://127.0.0.1:99999", "http://host?x=1", "http://host#x", "http://", "host:9000"],
)
def test_an_endpoint_that_is_none_is_invalid(settings: Settings, endpoint: str) -> None:
    given = structs.replace(settings, s3_endpoint_url=endpoint)
    with pytest.raises(InvalidInputError, match="LOCKGATE_S3_ENDPOINT_URL"):
        open_store("s3://lake", given).put("k", b"data")


REFUSED: Final = {
    "400": refusal("400 Bad Request", "KMS.DisabledException"),
    "403": refusal("403 Forbidden", "AccessDenied"),
    "404": refusal("404 Not Found", "NoSuchBucket"),
    "405": refusal("405 Method Not Allowed", "MethodNotAllowed"),
    "409": refusal("409 Conflict", "InvalidBucketState"),
    "412": refusal("412 Precondition Failed", "PreconditionFailed"),
    "413": sends(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n", keeps=True),
}
LOST: Final = {"502": answer("502 Bad Gateway", b""), "cut": hangs_up}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize(
    ("name", "refused"),  # each of both, and not every pair: boto3 limits the retries of a client
    [("put", refused) for refused in REFUSED]
    + [(name, "404") for name in ("part", "begin", "delete", "abort", "delete many")],
)
def test_a_refusal_after_a_lost_try_leaves_the_outcome_unknown(
    server: RudeServer, settings: Settings, name: str, refused: str, lost: str
) -> None:
    store = open_store("s3://lake", structs.replace(settings, s3_max_attempts=2))
    server.manners = [LOST[lost], REFUSED[refused]]
    with pytest.raises(OutcomeUnknownError, match=r"an earlier try got no answer.*answer to the last try"):
        CALLS[name].make(store)


@pytest.mark.parametrize("lost", LOST)
def test_what_a_lost_try_cannot_change_is_certain(server: RudeServer, settings: Settings, lost: str) -> None:
    store = open_store("s3://lake", structs.replace(settings, s3_max_attempts=2))
    for name, code in {"delete": "NoSuchKey", "abort": "NoSuchUpload"}.items():
        server.manners = [LOST[lost], refusal("404 Not Found", code)]
        CALLS[name].make(store)
    server.manners = [LOST[lost], refusal("404 Not Found", "NoSuchUpload")]
    with pytest.raises(UploadGoneError):
        CALLS["part"].make(store)


def test_a_body_that_stalls_is_read_again(server: RudeServer, settings: Settings) -> None:
    over = threading.Event()
    whole = success(OBJECT, b"data" * 100)

    def stalls(connection: socket.socket) -> bool:
        connection.sendall(whole[:-100])
        over.wait(20)
        return False

    patient = structs.replace(settings, s3_timeout_s=0.5, s3_max_attempts=2)
    server.manners = [stalls, sends(whole, keeps=True)]
    try:
        assert open_store("s3://lake", patient).get("k") == b"data" * 100
    finally:
        over.set()
        server.wait()


@pytest.mark.parametrize("name", ["put", "create", "get", "delete"])
@pytest.mark.parametrize("region", ["evil.example.com/", "eu-west-1#"])
def test_a_redirect_to_an_impossible_region_is_a_refusal(
    server: RudeServer, settings: Settings, region: str, name: str
) -> None:
    headers = b"x-amz-bucket-region: %b\r\n" % region.encode()
    body = b"<Error><Code>PermanentRedirect</Code><Message>no</Message></Error>"
    server.manners = [answer("301 Moved Permanently", body, headers=headers)] * 2
    with pytest.raises(AccessDeniedError, match="set LOCKGATE_S3_REGION"):
        CALLS[name].make(open_store("s3://lake", settings))
