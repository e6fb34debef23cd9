"""What S3 look-alikes refuse or answer otherwise, played by the fake or by a proxy before a real server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.fake_s3.refusal import Refusal
from tests.support.fake_s3.wire import Answer, Request, error, tag, xml

Lookalike = Callable[[Request], Answer | Refusal | None]
"""Returns its answer to a request; None: that of S3."""

_CHECKSUMS: Final = ("x-amz-checksum-", "x-amz-sdk-checksum-algorithm", "x-amz-trailer")


def _without_checksums(status: int, code: str, text: str) -> Lookalike:
    def play(request: Request) -> Refusal | None:
        found = next((name for name in request.headers if name.startswith(_CHECKSUMS)), None)
        return None if found is None else Refusal(status, code, text.format(found))

    return play


def wants_md5(request: Request) -> Refusal | None:
    if "delete" in request.query and "content-md5" not in request.headers:
        return Refusal(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
    return None


def without_bulk_deletion(request: Request) -> Refusal | None:
    return Refusal(501, "NotImplemented", "not implemented") if "delete" in request.query else None


def without_conditional_completion(request: Request) -> Refusal | None:
    is_completion = request.method == "POST" and "uploadId" in request.query
    if is_completion and "if-none-match" in request.headers:
        return Refusal(501, "NotImplemented", "A header you provided implies functionality not implemented")
    return None


def _wants(header: str, value: str) -> Lookalike:
    """Return what a bucket's policy does that demands a header of each new object."""

    def play(request: Request) -> Refusal | None:
        makes = (request.method == "PUT" and "uploadId" not in request.query) or "uploads" in request.query
        if request.method in {"PUT", "POST"} and makes and request.headers.get(header) != value:
            return Refusal(403, "AccessDenied", "explicit deny in a resource-based policy")
        return None

    return play


def equal_parts() -> Lookalike:
    """Return one that refuses to complete an upload whose parts differ in size, but for the last one."""
    sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def play(request: Request) -> Refusal | None:
        upload = sizes[request.query.get("uploadId", "")]
        if "partNumber" in request.query:
            upload[int(request.query["partNumber"])] = len(request.body)
        elif request.method == "POST" and "uploadId" in request.query:
            first, *others = [size for _, size in sorted(upload.items())]
            if set(others[:-1]) - {first} or (others and others[-1] > first):
                return Refusal(400, "InvalidPart", "All non-trailing parts must have the same length.")
        return None

    return play


def late_listing(request: Request) -> Answer | None:
    """List no object that was written just now."""
    if "list-type" not in request.query or "/probe/" not in request.query.get("prefix", ""):
        return None
    return Answer(body=xml("ListBucketResult", tag("IsTruncated", "false")))


def lookalikes() -> Mapping[str, Lookalike]:
    """Return all by name, each as new."""
    return {
        "no checksums (R2)": _without_checksums(501, "NotImplemented", "Header '{}' is not implemented"),
        "no checksums (B2)": _without_checksums(400, "InvalidArgument", "Unsupported header '{}' received"),
        "wants Content-MD5": wants_md5,
        "no DeleteObjects": without_bulk_deletion,
        "no conditional completion": without_conditional_completion,
        "wants equal parts": equal_parts(),
        "wants AES256": _wants("x-amz-server-side-encryption", "AES256"),
        "wants an ACL": _wants("x-amz-acl", "bucket-owner-full-control"),
        "late listing": late_listing,
    }


def played(lookalike: Lookalike | None, request: Request) -> Answer | None:
    """Return the answer of a look-alike to a request, if it is not that of S3."""
    answer = lookalike(request) if lookalike else None
    return error(answer.status, answer.code, answer.message) if isinstance(answer, Refusal) else answer


@contextmanager
def lookalike_proxy(upstream: str, lookalike: Lookalike) -> Iterator[str]:
    """Run a proxy before a plain HTTP server that plays a look-alike; yields its URL."""
    server = _Proxy(("127.0.0.1", 0), _Handler)
    server.upstream, server.lookalike = urlsplit(upstream).netloc, lookalike
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    upstream: str
    lookalike: Lookalike


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def __getattr__(self, name: str) -> Any:
        """Handle every method alike; the base class looks methods up as `do_PUT`."""
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        headers = {name.lower(): value for name, value in self.headers.items()}
        answer = played(
            self.server.lookalike, Request(self.command, self.path, bucket, key, query, headers, body)
        )
        if answer is None:
            self._forward(body)
        else:
            length = {"Content-Length": str(len(answer.body))}
            self._send(answer.status, {**answer.headers, **length}, answer.body)

    def _forward(self, body: bytes) -> None:
        upstream = HTTPConnection(self.server.upstream)
        upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() != "expect":
                upstream.putheader(name, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        data = answer.read()
        headers = {
            name: value
            for name, value in answer.getheaders()
            if name.lower() not in {"connection", "transfer-encoding"}
        }
        self._send(answer.status, headers if self.command == "HEAD" else _measured(headers, data), data)
        upstream.close()

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Do not log."""


def _measured(headers: Mapping[str, str], data: bytes) -> dict[str, str]:
    kept = {name: value for name, value in headers.items() if name.lower() != "content-length"}
    return {**kept, "Content-Length": str(len(data))}
