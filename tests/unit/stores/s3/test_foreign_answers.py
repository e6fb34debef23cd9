"""Answers that are none of S3, such as the pages of a proxy: no client takes them for one."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest

from lockgate.storage_core.errors import (
    ObjectNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from lockgate.storage_core.settings import Settings
from lockgate.storage_core.stores import Store, open_store
from lockgate.storage_core.stores.probe import with_capabilities
from tests.support.s3.misbehaving_server import (
    RudeServer,
    answer,
    sends,
)
from tests.support.s3.store_calls import CALLS, DATE, GONE, OBJECT, Call, success

pytestmark = pytest.mark.slow

WITH_DOCUMENT: Final = (
    "begin",
    "complete",
    "list",
    "list uploads",
    "delete many",
    "copy part",
    "upload bytes",
)
FOREIGN: Final = {
    "page of a proxy": b"<html><body>log in</body></html>",
    "another listing": b"<ListAllMyBucketsResult></ListAllMyBucketsResult>",
    "document type": b"<!DOCTYPE html><ListBucketResult></ListBucketResult>",
    "text": b"welcome",
}


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("name", WITH_DOCUMENT)
def test_a_document_that_is_none_of_s3_is_no_answer(
    server: RudeServer, settings: Settings, name: str, body: bytes
) -> None:
    made = {
        **CALLS,
        "copy part": Call(lambda store: store.copy_part("k", "u", 1, 0, source="s", start=0, length=4), b""),
        "upload bytes": Call(lambda store: store.upload_bytes("k", "u"), b"", changes=False),
    }[name]
    server.manners = [sends(success(DATE, body), keeps=True)]
    with pytest.raises(OutcomeUnknownError if made.changes else StoreUnavailableError):
        made.make(open_store("s3://lake", settings))


PAGES: Final = {
    **FOREIGN,
    "ingress": b"default backend - 404",
    "nothing": b"",
    "error without a code": b"<Error><Message>no</Message></Error>",
}


def _conditional_delete(store: Store) -> None:
    able = msgspec.structs.replace(store.capabilities, conditional_delete=True)
    with_capabilities(store, able).delete("k", if_version="v")


MORE_CALLS: Final = {**CALLS, "conditional delete": Call(_conditional_delete, GONE)}


@pytest.mark.parametrize("name", ["get", "delete", "abort", "conditional delete"])
@pytest.mark.parametrize("page", FOREIGN)
def test_a_page_is_no_object_and_no_success(
    server: RudeServer, settings: Settings, page: str, name: str
) -> None:
    server.manners = [sends(success(DATE, FOREIGN[page]), keeps=True)]
    with pytest.raises(StoreUnavailableError if name == "get" else OutcomeUnknownError):
        MORE_CALLS[name].make(open_store("s3://lake", settings))


@pytest.mark.parametrize("name", ["get", "put", "delete", "abort", "part", "list", "conditional delete"])
@pytest.mark.parametrize("page", PAGES)
def test_a_404_that_is_not_of_s3_does_not_mean_that_something_is_absent(
    server: RudeServer, settings: Settings, page: str, name: str
) -> None:
    server.manners = [answer("404 Not Found", PAGES[page])]
    call = MORE_CALLS[name]
    with pytest.raises(OutcomeUnknownError if call.changes else StoreUnavailableError):
        call.make(open_store("s3://lake", settings))


@pytest.mark.parametrize(
    "text",
    [
        b"<Error><Code>NoSuchKey</Code></Error>",
        b'<?xml version="1.0"?>\n<e:Error xmlns:e="u"><e:Message/><e:Code>\nOwnCode</e:Code></e:Error>',
    ],
)
def test_a_404_with_a_code_means_that_the_object_is_absent(
    server: RudeServer, settings: Settings, text: bytes
) -> None:
    server.manners = [answer("404 Not Found", text)]
    with pytest.raises(ObjectNotFoundError):
        open_store("s3://lake", settings).get("k")


@pytest.mark.parametrize("status", [b"202 Accepted", b"204 No Content"])
def test_a_success_without_an_object_is_no_object(
    server: RudeServer, settings: Settings, status: bytes
) -> None:
    length = b"" if status.startswith(b"204") else b"Content-Length: 0\r\n"
    server.manners = [sends(b"HTTP/1.1 %b\r\n%b%b\r\n" % (status, OBJECT, length), keeps=True)]
    with pytest.raises(StoreUnavailableError, match=f"a status of {status[:3].decode()}"):
        open_store("s3://lake", settings).get("k")


@pytest.mark.parametrize("name", ["delete", "abort"])
@pytest.mark.parametrize("body", [b"", b"<{}Result/>"])
def test_a_success_that_says_nothing_else_is_believed(
    server: RudeServer, settings: Settings, name: str, body: bytes
) -> None:
    operation = {"delete": b"DeleteObject", "abort": b"AbortMultipartUpload"}[name]
    server.manners = [sends(success(DATE, body.replace(b"{}", operation)), keeps=True)]
    CALLS[name].make(open_store("s3://lake", settings))
