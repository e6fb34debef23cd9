"""The volume server and its client: hostile requests, tokens, TLS, lost answers."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import urllib3

from lockgate.storage_core.errors import (
    AccessDeniedError,
    ConflictError,
    FencedError,
    InvalidInputError,
    LockgateError,
    MalformedRecordError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RecordVersionError,
    StaleReplicaError,
    StoreUnavailableError,
)
from lockgate.storage_core.files.volumes import remote as remote_module
from lockgate.storage_core.files.volumes.local import LocalVolume
from lockgate.storage_core.files.volumes.protocol import VolumeId
from lockgate.storage_core.files.volumes.remote import RemoteVolume
from lockgate.storage_core.files.volumes.replica import BlockId
from lockgate.storage_core.files.volumes.server import app
from lockgate.storage_core.files.volumes.server.owned import owned_volumes
from lockgate.storage_core.files.volumes.server.wire import (
    CRC32C_HEADER,
    CRC_HEADER,
    PIECE_BYTES,
    checksum,
    holds,
)
from lockgate.storage_core.http.server import tls_context
from lockgate.storage_core.stamp import Stamp
from tests.support.blobs.certificates import certify
from tests.support.blobs.http_server import PATIENCE_S, proxy_to
from tests.support.files.volume_server import remote_volume, served_volumes

B, S1, S2 = BlockId(7), Stamp(1, 1), Stamp(1, 2)
TOKEN = "t" * 32


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalVolume]:
    with LocalVolume(tmp_path / "volume") as volume:
        volume.create(B, S1)
        volume.append(B, S1, 0, b"abc")
        volume.flush(B, S1)
        yield volume


@pytest.fixture
def url(local: LocalVolume) -> Iterator[str]:
    with served_volumes(local) as served:
        yield served


@pytest.fixture
def remote(local: LocalVolume, url: str) -> Iterator[RemoteVolume]:
    with remote_volume(local.id, url) as volume:
        yield volume


def answer_to(url: str, method: str, path: str, **options: object) -> tuple[int, bytes]:
    answer = urllib3.request(method, f"{url}{path}", timeout=PATIENCE_S, retries=False, **options)  # type: ignore[arg-type]
    return answer.status, answer.data


def connection_to(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S)


def test_bytes_beyond_one_request_are_appended_and_read_in_pieces(remote: RemoteVolume) -> None:
    data = bytes(range(256)) * (PIECE_BYTES // 256) + b"a piece and a bit" + bytes(PIECE_BYTES)

    assert remote.append(B, S1, 3, data) == 3 + len(data)
    assert remote.append(B, S1, 3, data) == 3 + len(data)
    assert remote.flush(B, S1) == 3 + len(data)
    assert remote.read(B, S1, 0, 10 * PIECE_BYTES) == b"abc" + data
    assert remote.read(B, S1, 3 + PIECE_BYTES, 17) == b"a piece and a bit"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "stamp=1.1",
        "offset=3",
        "stamp=1.1&offset=-1",
        "stamp=1.1&offset=x",
        "stamp=1.1&offset=99999999999999999999",
        "stamp=1.1&offset=9223372036854775808",
        "stamp=one&offset=3",
        "stamp=-1.1&offset=3",
        "stamp=1.1&offset=%D9%A3",
    ],
)
def test_an_append_with_bad_arguments_is_refused(local: LocalVolume, url: str, query: str) -> None:
    path = f"/volumes/{local.id}/blocks/7/bytes?{query}"
    status, data = answer_to(url, "POST", path, body=b"x", headers=checksum(b"x", is_crc32c=True))

    assert (status, b"InvalidInputError" in data) == (400, True)
    assert local.stat(B) == local.fence(B, S1)
    assert local.read(B, S1, 0, 9) == b"abc"


@pytest.mark.parametrize("block", ["-7", "x", "7.0", "9" * 40])
def test_a_block_that_is_no_number_is_refused(local: LocalVolume, url: str, block: str) -> None:
    assert answer_to(url, "PUT", f"/volumes/{local.id}/blocks/{block}?stamp=1.1")[0] == 400
    assert [one.block for one in local.replicas(None, 9)] == [B]


def test_a_state_and_pages_are_checked(local: LocalVolume, url: str) -> None:
    at = f"/volumes/{local.id}"
    for state in ("stale", "suspect", "", "x"):
        path = f"{at}/blocks/7/finish?stamp=1.1&length_bytes=3&state={state}"
        assert answer_to(url, "POST", path)[0] == 400
    for query in ("", "limit=0", "limit=10001", "limit=5&after=x"):
        assert answer_to(url, "GET", f"{at}/replicas?{query}")[0] == 400
    assert answer_to(url, "GET", f"{at}/blocks/7/bytes?stamp=1.1&offset=0&size={PIECE_BYTES + 1}")[0] == 400
    assert answer_to(url, "GET", f"{at}/blocks/../../etc/passwd")[0] == 404


def test_a_body_that_is_too_large_is_refused_before_it_is_read(local: LocalVolume, url: str) -> None:
    path = f"/volumes/{local.id}/blocks/7/bytes?stamp=1.1&offset=3"
    for length in (PIECE_BYTES + 1, 10**17):
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n"
        with socket.create_connection(
            ("127.0.0.1", int(url.rpartition(":")[2])), timeout=PATIENCE_S
        ) as sending:
            sending.sendall(head.encode())
            assert sending.recv(65_536).startswith(b"HTTP/1.1 413")
    body = bytes(PIECE_BYTES + 1)
    pieces = iter([body[: PIECE_BYTES // 2], body[PIECE_BYTES // 2 :]])
    assert answer_to(url, "POST", path, body=pieces, headers=checksum(body, is_crc32c=False))[0] == 413
    assert local.flush(B, S1) == 3


@pytest.mark.parametrize("header", [CRC_HEADER, CRC32C_HEADER])
@pytest.mark.parametrize("crc", [None, "", "00000000", "x"])
def test_bytes_whose_checksum_does_not_hold_are_not_appended(
    local: LocalVolume, url: str, crc: str | None, header: str
) -> None:
    path = f"/volumes/{local.id}/blocks/7/bytes?stamp=1.1&offset=3"
    headers = {} if crc is None else {header: crc}

    assert answer_to(url, "POST", path, body=b"def", headers=headers)[0] == 503
    assert local.flush(B, S1) == 3


@pytest.mark.parametrize("is_older", [False, True])
def test_client_and_server_use_crc_32c_once_each_has_said_that_it_knows_it(
    local: LocalVolume, remote: RemoteVolume, monkeypatch: pytest.MonkeyPatch, *, is_older: bool
) -> None:
    seen: list[list[str]] = []

    def look(data: bytes, headers: Mapping[str, str]) -> bool:
        seen.append([name for name in (CRC_HEADER, CRC32C_HEADER) if name in headers])
        return holds(data, headers)

    monkeypatch.setattr(remote_module, "holds", look)
    monkeypatch.setattr(app, "holds", look)
    if is_older:
        monkeypatch.setattr(app, "KNOWN", {})
        monkeypatch.setattr(app, "knows_crc32c", lambda _: False)

    remote.append(B, S1, 3, b"def")
    remote.append(B, S1, 6, b"ghi")
    remote.flush(B, S1)

    assert remote.read(B, S1, 0, 9) == local.read(B, S1, 0, 9) == b"abcdefghi"
    later = CRC_HEADER if is_older else CRC32C_HEADER
    assert seen == [[CRC_HEADER], [later], [later]]


def test_an_older_client_gets_crc_32(local: LocalVolume, url: str) -> None:
    path = f"{url}/volumes/{local.id}/blocks/7/bytes?stamp=1.1&offset=0&size=9"
    answer = urllib3.request("GET", path, timeout=PATIENCE_S, retries=False)
    assert (answer.data, answer.headers[CRC_HEADER]) == (b"abc", f"{zlib.crc32(b'abc'):08x}")
    assert CRC32C_HEADER not in answer.headers


def test_a_body_that_is_cut_is_not_appended(local: LocalVolume, remote: RemoteVolume, url: str) -> None:
    data = bytes(100_000)
    with proxy_to(url) as proxy, remote_volume(local.id, proxy.url) as broken:
        proxy.breaks += [("up", 50_000)]
        with pytest.raises(OutcomeUnknownError, match="volume server gave no answer"):
            broken.append(B, S1, 3, data)
        assert remote.flush(B, S1) == 3
        assert broken.append(B, S1, 3, data) == 100_003
        assert remote.flush(B, S1) == 100_003


def test_a_change_whose_answer_is_lost_may_be_done_and_is_repeated(local: LocalVolume, url: str) -> None:
    with proxy_to(url) as proxy:
        for call in (
            lambda volume: volume.append(B, S1, 3, b"def"),
            lambda volume: volume.flush(B, S1),
            lambda volume: volume.fence(B, S2).length_bytes,
        ):
            proxy.breaks += [("down", 0)]
            with remote_volume(local.id, proxy.url) as broken:
                with pytest.raises(OutcomeUnknownError, match="it may have been done"):
                    call(broken)
                assert call(broken) == 6
    assert local.read(B, S2, 0, 9) == b"abcdef"


def test_a_read_whose_answer_is_lost_or_damaged_is_unavailable(local: LocalVolume, url: str) -> None:
    data = b"abc" + bytes(100_000)
    local.append(B, S1, 0, data)
    local.flush(B, S1)
    with proxy_to(url) as proxy:
        proxy.breaks += [("down", 0), ("down", 50_000)]
        with remote_volume(local.id, proxy.url) as broken:
            for _ in range(2):
                with pytest.raises(StoreUnavailableError):
                    broken.read(B, S1, 0, len(data))
            assert broken.read(B, S1, 0, len(data)) == data
        proxy.breaks += [("down", 0)]
        with remote_volume(local.id, proxy.url) as broken, pytest.raises(StoreUnavailableError):
            broken.stat(B)
        proxy.damages += [90_000]
        with (
            remote_volume(local.id, proxy.url) as broken,
            pytest.raises(StoreUnavailableError, match="checksum of the answer does not hold"),
        ):
            broken.read(B, S1, 0, len(data))


def test_a_server_that_is_down_is_unavailable_for_reads_and_changes(local: LocalVolume) -> None:
    with served_volumes(local) as url:
        pass
    with remote_volume(local.id, url) as gone:
        for call in (lambda: gone.stat(B), lambda: gone.flush(B, S1), gone.usage):
            with pytest.raises(StoreUnavailableError, match="volume server cannot be reached"):
                call()
        assert not gone.answers()


def test_a_volume_that_the_server_does_not_have_is_out_of_reach_and_not_empty(url: str) -> None:
    with remote_volume(VolumeId("other"), url) as other:
        for call in (lambda: other.stat(B), lambda: other.fence(B, S1), lambda: other.delete(B, S1)):
            with pytest.raises(StoreUnavailableError, match="does not have the volume other"):
                call()
        assert not other.answers()


@pytest.mark.parametrize(
    "error",
    [
        ConflictError,
        FencedError,
        InvalidInputError,
        MalformedRecordError,
        ObjectNotFoundError,
        OutcomeUnknownError,
        RecordVersionError,
        StaleReplicaError,
        StoreUnavailableError,
    ],
)
def test_an_error_comes_back_as_the_same_class(
    local: LocalVolume, remote: RemoteVolume, monkeypatch: pytest.MonkeyPatch, error: type[LockgateError]
) -> None:
    def fail(*_: object) -> None:
        raise error("why it failed")

    monkeypatch.setattr(local, "flush", fail)
    with pytest.raises(LockgateError, match="why it failed") as raised:
        remote.flush(B, S1)
    assert type(raised.value) is error


def test_an_unexpected_fault_of_the_server_leaves_a_change_unknown(
    local: LocalVolume, remote: RemoteVolume, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(local, "flush", fail)
    monkeypatch.setattr(local, "stat", fail)
    with pytest.raises(OutcomeUnknownError, match="internal error of the volume server"):
        remote.flush(B, S1)
    with pytest.raises(StoreUnavailableError, match="internal error of the volume server"):
        remote.stat(B)


def test_a_token_opens_the_volumes_of_its_line(local: LocalVolume, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} {local.id}\n{'o' * 32} other-*\n")
    tokens.chmod(0o600)
    good, other, unknown = (tmp_path / name for name in ("good", "other", "unknown"))
    for path, token in ((good, TOKEN), (other, "o" * 32), (unknown, "u" * 32)):
        path.write_text(token)
        path.chmod(0o600)
    with served_volumes(local, tokens=tokens) as url:
        with remote_volume(local.id, url, token_file=good) as volume:
            assert volume.append(B, S1, 3, b"def") == 6
        for file, why in (
            (None, "requires a bearer token"),
            (unknown, "not known"),
            (other, "does not open volume"),
        ):
            with remote_volume(local.id, url, token_file=file) as volume:
                for call in (
                    lambda: volume.append(B, S1, 6, b"x"),
                    lambda: volume.read(B, S1, 0, 1),
                    lambda: volume.delete(B, S1),
                ):
                    with pytest.raises(AccessDeniedError, match=why):
                        call()
                assert not volume.answers()
        assert answer_to(url, "GET", "/health")[0] == 200
        assert b"lockgate_volumes_requests_total" in answer_to(url, "GET", "/metrics")[1]
    assert local.flush(B, S1) == 6


def test_a_volume_is_served_over_tls(local: LocalVolume, tmp_path: Path) -> None:
    certificate = certify(tmp_path, "server")
    with served_volumes(local, tls=tls_context(*certificate)) as url:
        with remote_volume(local.id, url, ca_file=certificate[0]) as volume:
            assert volume.read(B, S1, 0, 9) == b"abc"
        with (
            remote_volume(local.id, url) as volume,
            pytest.raises(InvalidInputError, match="LOCKGATE_VOLUME_CA_FILE"),
        ):
            volume.read(B, S1, 0, 9)


def test_a_client_that_stalls_is_disconnected(local: LocalVolume) -> None:
    with served_volumes(local, idle_s=0.2) as url:
        path = f"/volumes/{local.id}/blocks/7/bytes?stamp=1.1&offset=3"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc"
        with connection_to(url) as slow:
            slow.sendall(head.encode())
            assert slow.recv(65_536).startswith(b"HTTP/1.1 408")
    assert local.flush(B, S1) == 3


def test_a_served_volume_belongs_to_one_process_and_one_journal(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    with owned_volumes(folders, "journal-1") as owned:
        assert len(owned) == 2
        with (
            pytest.raises(ConflictError, match="is open in the process with pid"),
            owned_volumes(folders, "journal-1"),
        ):
            pass
    with owned_volumes(folders, "journal-1") as again:
        assert list(again) == list(owned)
    with (
        pytest.raises(ConflictError, match="has blocks of the journal journal-1"),
        owned_volumes(folders, "journal-2"),
    ):
        pass
    (tmp_path / "copy").mkdir()
    for name in ("volume.id", "journal.id"):
        (tmp_path / "copy" / name).write_bytes((folders[0] / name).read_bytes())
    with pytest.raises(InvalidInputError, match="is a copy of another volume"):
        owned_volumes([*folders, tmp_path / "copy"], "journal-1").__enter__()
    with pytest.raises(InvalidInputError, match="is named twice"):
        owned_volumes([*folders, tmp_path / "c" / ".." / "a"], "journal-1").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInputError, match="is a file"):
        owned_volumes([*folders, tmp_path / "file"], "journal-1").__enter__()
    with pytest.raises(InvalidInputError, match="too long"):
        owned_volumes([*folders, tmp_path / ("x" * 300)], "journal-1").__enter__()


def test_a_damaged_replica_is_set_aside_and_discarded(remote: RemoteVolume, local: LocalVolume) -> None:
    assert not remote.quarantine(BlockId(8), S1)
    assert remote.quarantine(B, S1)
    assert local.stat(B) is None
    assert remote.quarantined(None, 9) == (B,)
    assert remote.quarantined(B, 9) == ()
    assert remote.discard(B)
    assert not remote.discard(B)
    assert remote.quarantined(None, 9) == ()
