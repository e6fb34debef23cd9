"""An S3 server that is a script of answers on a real socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One scripted response; without a status the connection is closed."""

    status: int | None = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    cut_short: bool = False


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


def error(status: int, code: str, message: str = "error of the server") -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>")


class Script:
    """Return the answers in turn, the last one repeatedly, and record the requests."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[Request] = []

    def next(self, request: Request) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ScriptedServer

    def __getattr__(self, name: str) -> Any:
        """Handle every method in the same way; the base class looks up methods such as `do_PUT`."""
        if name.startswith("do_"):
            return self.handle_any
        raise AttributeError(name)

    def handle_any(self) -> None:
        script = self.server.script
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = script.next(Request(self.command, self.path, dict(self.headers), body))
        if answer.status is None:
            self.close_connection = True
            return
        payload = answer.body.encode()
        # Only the scripted headers: the date too is part of the script.
        self.send_response_only(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(payload) + (5 if answer.cut_short else 0)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)
        self.close_connection = answer.cut_short

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """Do not log."""


class ScriptedServer(ThreadingHTTPServer):
    """Follows the script of the test that runs."""

    daemon_threads = True
    script = Script()
