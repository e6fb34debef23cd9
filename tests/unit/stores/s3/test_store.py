"""Behaviour specific to S3 stores: what is sent, how often, and what the responses mean.

The server replays a script of responses on a real socket, because the bytes on the wire matter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff

from lockgate.storage_core.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    InvalidInputError,
    LockgateError,
    NotAppliedError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
    UnsupportedStoreError,
    UploadGoneError,
)
from lockgate.storage_core.ids import Token
from lockgate.storage_core.settings import Settings, load_settings
from lockgate.storage_core.stores import Part, PendingUpload
from lockgate.storage_core.stores.s3.clients import clients_for
from lockgate.storage_core.stores.s3.store import S3Store
from tests.support.s3.scripted_server import Answer, Handler, Script, ScriptedServer, error

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
ACCESS_KEY = "AKIAIOSFODNN7EXAMPLE"
PENDING = PendingUpload(
    key="p",
    upload_id="u",
    token=Token("t"),
    size=1,
    parts=(Part(number=1, size=1, etag='"e"', checksum="AAAAAA=="),),
)
PART_XML = "<InitiateMultipartUploadResult><UploadId>u-1</UploadId></InitiateMultipartUploadResult>"


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def script(server: ScriptedServer) -> Script:
    server.script = Script()
    return server.script


@pytest.fixture
def endpoint(server: ScriptedServer, script: Script) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


@pytest.fixture(autouse=True)
def no_pause_between_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def settings(endpoint: str, **options: Any) -> Settings:
    return load_settings(
        **{"s3_endpoint_url": endpoint, "s3_timeout_s": 0.3, "s3_max_attempts": 2, **options}
    )


@pytest.fixture
def store(endpoint: str) -> S3Store:
    return S3Store("lake", "sales", settings(endpoint))


SENT_ONCE: dict[str, Callable[[S3Store], object]] = {
    "create": lambda store: store.create("marker", b"x"),
    "conditional put": lambda store: store.put("marker", b"x", if_version="v"),
    "completion": lambda store: store.complete_upload(PENDING),
    "conditional completion": lambda store: store.complete_upload(PENDING, if_absent=True),
}
REPEATED: dict[str, Callable[[S3Store], object]] = {
    "put": lambda store: store.put("a", b"x"),
    "part": lambda store: store.put_part("p", "u", 1, 0, b"x"),
    "abort": lambda store: store.abort_upload("p", "u"),
    "delete": lambda store: store.delete("a"),
    "bulk delete": lambda store: store.delete_many(["a"]),
    "begin": lambda store: store.begin_upload("p", Token("t")),
}
READS: dict[str, Callable[[S3Store], object]] = {
    "get": lambda store: store.get("a"),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.pages()),
    "list uploads": lambda store: list(store.upload_pages()),
    "holds": lambda store: store.holds(PENDING),
}


class TestHowOftenACallIsSent:
    @pytest.mark.parametrize("call", SENT_ONCE)
    @pytest.mark.parametrize(
        "answer",
        [
            error(500, "InternalError"),
            error(409, "ConditionalRequestConflict"),
            Answer(status=None),
        ],
        ids=["500", "409", "closed"],
    )
    def test_a_call_whose_retry_could_conflict_with_its_first_try_is_sent_once(
        self, store: S3Store, script: Script, call: str, answer: Answer
    ) -> None:
        script.answers = [answer]

        with pytest.raises(LockgateError):
            SENT_ONCE[call](store)
        assert len(script.requests) == 1

    @pytest.mark.parametrize("call", REPEATED)
    def test_an_idempotent_call_is_retried(self, store: S3Store, script: Script, call: str) -> None:
        script.answers = [error(500, "InternalError")]

        with pytest.raises(OutcomeUnknownError):
            REPEATED[call](store)
        assert len(script.requests) == 2

    def test_a_truncated_body_is_fetched_again(self, store: S3Store, script: Script) -> None:
        headers = {"ETag": '"v"', "Last-Modified": "Sat, 21 Nov 2026 12:00:00 GMT"}
        script.answers = [
            Answer(body="01234", headers=headers, cut_short=True),
            Answer(body="0123456789", headers=headers),
        ]

        assert store.get("a") == b"0123456789"
        assert len(script.requests) == 2


class TestWhatAnAnswerMeans:
    @pytest.mark.parametrize("call", [*SENT_ONCE, *REPEATED])
    def test_a_change_without_a_response_has_an_unknown_outcome(
        self, store: S3Store, script: Script, call: str
    ) -> None:
        script.answers = [Answer(status=None)]

        with pytest.raises(
            OutcomeUnknownError, match="nothing was deleted; let recovery read s3://lake/sales"
        ):
            {**SENT_ONCE, **REPEATED}[call](store)

    @pytest.mark.parametrize("call", ["create", "put", "get"])
    def test_a_refused_connection_had_no_effect(self, call: str) -> None:
        store = S3Store("lake", "sales", settings("http://127.0.0.1:1", s3_max_attempts=1))

        with pytest.raises(StoreUnavailableError, match="check the endpoint"):
            {**SENT_ONCE, **REPEATED, **READS}[call](store)

    @pytest.mark.parametrize(
        ("answer", "kind", "word"),
        [
            (error(412, "PreconditionFailed"), AlreadyExistsError, "whose it is"),
            (error(409, "ConditionalRequestConflict"), StoreUnavailableError, "another change"),
            (error(409, "ObjectParentIsFile"), NotAppliedError, "correct what it names"),
            (
                error(404, "NoSuchBucket"),
                ObjectNotFoundError,
                "no bucket 'lake'; nothing was changed; create it",
            ),
            (error(403, "AccessDenied"), AccessDeniedError, "s3:PutObject"),
            (error(403, "SignatureDoesNotMatch"), AccessDeniedError, "check the credentials"),
            (error(400, "ExpiredToken"), AccessDeniedError, "get new ones"),
            (error(400, "TokenRefreshRequired"), AccessDeniedError, "get new ones"),
            (error(403, "RequestTimeTooSkewed"), AccessDeniedError, "this machine's clock"),
            (error(400, "RequestExpired"), AccessDeniedError, "this machine's clock"),
            (error(429, "TooManyRequests"), StoreUnavailableError, "try again later"),
            (error(503, "SlowDown"), OutcomeUnknownError, "may or may not"),
            (error(500, "InternalError"), OutcomeUnknownError, "may or may not"),
            (error(502, "BadGateway"), OutcomeUnknownError, "may or may not"),
            (error(501, "NotImplemented"), UnsupportedStoreError, "cannot do that"),
            (error(400, "AuthorizationHeaderMalformed"), AccessDeniedError, "LOCKGATE_S3_REGION"),
            (error(400, "KeyTooLongError"), InvalidInputError, "shorter"),
            (error(400, "RequestTimeout"), OutcomeUnknownError, "may or may not"),
            (Answer(200, "not XML", {}), OutcomeUnknownError, "may or may not"),
        ],
        ids=lambda value: value.body[:60] if isinstance(value, Answer) else None,
    )
    def test_the_error_type_of_a_create_determines_what_clean_up_may_do(
        self, store: S3Store, script: Script, answer: Answer, kind: type[LockgateError], word: str
    ) -> None:
        script.answers = [answer]

        with pytest.raises(LockgateError) as fault:
            store.create("marker", b"x")
        assert type(fault.value) is kind
        assert word in str(fault.value)
        assert str(fault.value).startswith("PutObject s3://lake/sales/marker: ")

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (error(200, "InternalError"), OutcomeUnknownError),
            (error(200, "SlowDown"), OutcomeUnknownError),
            (error(409, "ConditionalRequestConflict"), OutcomeUnknownError),
            (error(409, "OperationAborted"), OutcomeUnknownError),
            (error(409, "ObjectParentIsFile"), NotAppliedError),
            (error(404, "NoSuchUpload"), UploadGoneError),
            (error(404, "NoSuchKey"), UploadGoneError),
            (error(412, "PreconditionFailed"), AlreadyExistsError),
            (error(429, "TooManyRequests"), StoreUnavailableError),
            (error(503, "SlowDown"), OutcomeUnknownError),
            (error(403, "AccessDenied"), AccessDeniedError),
        ],
        ids=[
            "error in 200",
            "slow down in 200",
            "409",
            "aborted",
            "refused",
            "404",
            "404 of another name",
            "412",
            "429",
            "503",
            "403",
        ],
    )
    def test_the_error_type_of_a_completion_determines_what_clean_up_may_do(
        self, store: S3Store, script: Script, answer: Answer, kind: type[LockgateError]
    ) -> None:
        script.answers = [answer]

        with pytest.raises(LockgateError) as fault:
            store.complete_upload(PENDING, if_absent=True)
        assert type(fault.value) is kind

    def test_reading_from_a_missing_bucket_names_the_bucket(self, store: S3Store, script: Script) -> None:
        script.answers = [error(404, "NoSuchBucket")]

        with pytest.raises(ObjectNotFoundError, match="no bucket 'lake'; create it"):
            list(store.pages())


class TestWhatIsSent:
    def test_a_create_carries_its_condition_and_its_checksum(self, store: S3Store, script: Script) -> None:
        script.answers = [Answer(headers={"ETag": '"v1"', "Date": "Sat, 21 Nov 2026 12:00:00 GMT"})]
        made = store.create("marker", b"x")

        (request,) = script.requests
        assert request.path == "/lake/sales/marker"
        assert request.headers["If-None-Match"] == "*"
        assert request.headers["x-amz-checksum-crc32"] == "jNwWgw=="
        assert request.body == b"x"
        assert (made.version, made.modified_s) == ("v1", 1795262400.0)

    def test_an_upload_carries_token_storage_class_and_key(self, endpoint: str, script: Script) -> None:
        script.answers = [Answer(body=PART_XML)]
        store = S3Store(
            "lake", "", settings(endpoint, s3_storage_class="STANDARD_IA", s3_sse_kms_key_id="key-1")
        )

        assert store.begin_upload("a", Token("mine"), content_type="text/csv") == "u-1"
        sent = {name.lower(): value for name, value in script.requests[0].headers.items()}
        assert script.requests[0].path == "/lake/a?uploads"
        assert sent["x-amz-meta-lockgate-token"] == "mine"
        assert sent["x-amz-checksum-algorithm"] == "CRC32"
        assert sent["x-amz-storage-class"] == "STANDARD_IA"
        assert sent["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
        assert sent["content-type"] == "text/csv"

    def test_checksums_are_sent_only_to_a_store_that_keeps_them(self, store: S3Store, script: Script) -> None:
        script.answers = [
            Answer(headers={"ETag": '"e1"', "x-amz-checksum-crc32": "jNwWgw=="}),
            Answer(headers={"ETag": '"e2"'}),
            Answer(body="<CompleteMultipartUploadResult><ETag>v</ETag></CompleteMultipartUploadResult>"),
        ]
        parts = [store.put_part("p", "u", 1, 0, b"x"), store.put_part("p", "u", 2, 1, b"y")]
        store.complete_upload(store.seal_upload("p", "u", Token("t"), parts))

        assert [part.checksum for part in parts] == ["jNwWgw==", None]
        assert script.requests[2].body.count(b"<ChecksumCRC32>jNwWgw==</ChecksumCRC32>") == 1
        assert script.requests[2].body.count(b"ChecksumCRC32>") == 2

    def test_a_page_of_uploads_that_ends_within_a_key_continues_before_that_key(
        self, store: S3Store, script: Script
    ) -> None:
        def page(*names: str, more: bool) -> Answer:
            uploads = "".join(
                f"<Upload><Key>sales/{name[0]}</Key><UploadId>{name}</UploadId>"
                "<Initiated>2026-11-21T00:00:00Z</Initiated></Upload>"
                for name in names
            )
            last = f"<NextKeyMarker>sales/{names[-1][0]}</NextKeyMarker>"
            markers = f"{last}<NextUploadIdMarker>m</NextUploadIdMarker>"
            truncated = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
            body = f"<ListMultipartUploadsResult>{truncated}{markers}{uploads}</ListMultipartUploadsResult>"
            return Answer(body=body)

        script.answers = [
            page("a1", "b1", "b2", more=True),
            page("b1", "b2", "b3", more=True),
            page("b4", "c1", more=False),
        ]

        listed = [found.upload_id for listing in store.upload_pages() for found in listing]
        assert listed == ["a1", "b1", "b2", "b3", "b4", "c1"]
        assert "key-marker=sales%2Fa" in script.requests[1].path
        assert "upload-id-marker" not in script.requests[1].path
        assert "upload-id-marker=m" in script.requests[2].path

    @pytest.mark.parametrize(
        "text",
        [
            "2026-11-21T01:02:03.5Z",
            "2026-11-21T01:02:03.500Z",
            "2026-11-21T02:02:03.5+01:00",
            "2026-11-21 01:02:03.5Z",
            "Sat, 21 Nov 2026 01:02:03.5 GMT",
            "1795222923.5",
        ],
    )
    def test_a_time_of_a_listing_is_understood_in_each_form_that_servers_send(
        self, store: S3Store, script: Script, text: str
    ) -> None:
        upload = f"<Upload><Key>sales/a</Key><UploadId>u</UploadId><Initiated>{text}</Initiated></Upload>"
        script.answers = [Answer(body=f"<ListMultipartUploadsResult>{upload}</ListMultipartUploadsResult>")]

        (found,) = [found for page in store.upload_pages() for found in page]
        assert found.begun_s == datetime(2026, 11, 21, 1, 2, 3, 500_000, UTC).timestamp()

    @pytest.mark.parametrize(
        "inner",
        [
            "<Upload><Key>sales/a</Key><UploadId>u</UploadId></Upload>",
            "<Upload><Key>sales/a</Key><UploadId>u</UploadId><Initiated>inf</Initiated></Upload>",
            "<Upload><UploadId>u</UploadId><Initiated>2026-11-21T00:00:00Z</Initiated></Upload>",
            "<Uploads>text</Uploads><IsTruncated>true</IsTruncated>",
            "<IsTruncated>true</IsTruncated>",
            "<IsTruncated>true</IsTruncated><NextKeyMarker>sales/a</NextKeyMarker>",
        ],
    )
    def test_a_listing_of_uploads_that_lacks_something_is_no_answer(
        self, store: S3Store, script: Script, inner: str
    ) -> None:
        script.answers = [
            Answer(body=f"<ListMultipartUploadsResult>{inner}</ListMultipartUploadsResult>")
        ] * 9

        with pytest.raises(StoreUnavailableError):
            list(store.upload_pages())

    def test_the_key_of_the_marker_itself_is_left_out(self, store: S3Store, script: Script) -> None:
        uploads = "".join(
            f"<Upload><Key>sales/{name}</Key><UploadId>u</UploadId><Initiated>2026-11-21T00:00:00Z</Initiated></Upload>"
            for name in "ab"
        )
        script.answers = [Answer(body=f"<ListMultipartUploadsResult>{uploads}</ListMultipartUploadsResult>")]

        assert [found.key for page in store.upload_pages(after="a") for found in page] == ["b"]

    def test_a_listing_of_objects_that_does_not_name_its_next_page_is_no_answer(
        self, store: S3Store, script: Script
    ) -> None:
        script.answers = [
            Answer(body="<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>")
        ] * 9

        with pytest.raises(StoreUnavailableError):
            list(store.pages())

    def test_responses_that_omit_false_or_empty_fields_are_understood(
        self, store: S3Store, script: Script
    ) -> None:
        upload = (
            "<Upload><Key>sales/a</Key><UploadId>u</UploadId>"
            "<Initiated>2026-11-21T00:00:00Z</Initiated></Upload>"
        )
        script.answers = [
            Answer(body=f"<ListMultipartUploadsResult>{upload}</ListMultipartUploadsResult>"),
            Answer(body="<ListBucketResult></ListBucketResult>"),
        ]

        assert [found.upload_id for page in store.upload_pages() for found in page] == ["u"]
        assert "no rule" in store.upload_expiry_problem()


class TestConfiguration:
    def test_missing_credentials_are_named_with_the_remedy(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

        with pytest.raises(AccessDeniedError, match="changed; set AWS_PROFILE, or AWS_ACCESS_KEY_ID"):
            S3Store("lake", "", settings(endpoint)).create("a", b"")

    def test_an_error_about_a_missing_profile_names_it(self, endpoint: str) -> None:
        with pytest.raises(InvalidInputError, match=r"\(missing\).*LOCKGATE_S3_PROFILE"):
            S3Store("lake", "", settings(endpoint, s3_profile="missing")).head("a")

    def test_endpoint_and_region_come_from_the_environment_if_the_settings_have_none(
        self, endpoint: str, script: Script, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        monkeypatch.setenv("AWS_REGION", "eu-west-3")
        script.answers = [Answer(headers={"ETag": '"v"'})]

        S3Store("lake", "", load_settings()).create("a", b"")
        assert script.requests[0].path == "/lake/a"
        assert "/eu-west-3/s3/" in script.requests[0].headers["Authorization"]

    def test_only_aws_is_trusted_with_conditional_delete_without_a_probe(self, endpoint: str) -> None:
        assert S3Store("lake", "", load_settings()).capabilities.conditional_delete
        assert not S3Store("lake", "", settings(endpoint)).capabilities.conditional_delete

    def test_settings_with_equal_connection_values_share_clients(self, endpoint: str) -> None:
        clients = clients_for(settings(endpoint))
        assert clients_for(settings(endpoint, journal="other", committers={"s3://": "magic"})) is clients
        assert clients_for(settings(endpoint, s3_timeout_s=0.4)) is not clients


class TestSecrets:
    @pytest.mark.parametrize(
        "message",
        [
            f"the key {ACCESS_KEY} is not known",
            f"secret_access_key={SECRET} is wrong",
            f"Signature: {SECRET}, expected another",
            f"see https://user:{SECRET}@proxy/",
            f"X-Amz-Security-Token={SECRET}&x=1",
        ],
    )
    def test_no_credential_reaches_a_message(self, store: S3Store, script: Script, message: str) -> None:
        script.answers = [error(403, "AccessDenied", message.replace("&", "&amp;"))]

        with pytest.raises(AccessDeniedError) as fault:
            store.create("a", b"")
        assert SECRET not in str(fault.value)
        assert ACCESS_KEY not in str(fault.value)
        assert fault.value.__cause__ is None

    def test_no_password_of_an_endpoint_reaches_a_message(self) -> None:
        with pytest.raises(StoreUnavailableError) as fault:
            S3Store("lake", "", settings(f"http://user:{SECRET}@127.0.0.1:1")).create("a", b"")
        assert SECRET not in str(fault.value)
