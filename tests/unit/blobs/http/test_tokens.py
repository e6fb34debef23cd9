"""Tokens restrict which jobs' blobs a client may use; without tokens only local clients are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from lockgate.storage_core.blobs.http.access import BearerTokens
from lockgate.storage_core.blobs.http.client import BlobClient
from lockgate.storage_core.blobs.keys import upload_set_of
from lockgate.storage_core.errors import AccessDeniedError, ConflictError, FencedError, InvalidInputError
from lockgate.storage_core.http.server import listen
from lockgate.storage_core.http.tokens import TokenFile
from tests.support.blobs.http_server import client_of, served
from tests.support.blobs.server import BlobWorld, key_of

SALES, FLIGHTS, ALL = "5a1e5" * 6, "f1167" * 6, "a11a1" * 6


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return written(
        tmp_path / "tokens",
        f"# of the team\n{SALES} sales-* sales\n\n{FLIGHTS} flights  # and no other\n{ALL} *\n",
    )


@pytest.fixture
def url(world: BlobWorld, tokens: Path) -> Iterator[str]:
    with served(world.server, BearerTokens(tokens)) as url:
        yield url


@pytest.fixture
def sales(url: str, tmp_path: Path) -> Iterator[BlobClient]:
    with client_of(url, token_file=written(tmp_path / "sales", SALES)) as client:
        yield client


@pytest.fixture
def everybody(url: str, tmp_path: Path) -> Iterator[BlobClient]:
    with client_of(url, token_file=written(tmp_path / "all", ALL)) as client:
        yield client


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_token_grants_access_to_the_jobs_listed_with_it(sales: BlobClient) -> None:
    for job_id in ("sales", "sales-2026"):
        upload_set = sales.begin_set(job_id)
        blob = sales.put(b"a", job_id=job_id, upload_set=upload_set)
        assert sales.complete_set(upload_set) == 1
        assert sales.get(*key_of(blob)) == b"a"


def test_a_token_grants_access_to_no_other_job(
    sales: BlobClient, everybody: BlobClient, world: BlobWorld
) -> None:
    blob = everybody.put(b"a", job_id="flights", owners=["viewer:1"])
    upload_set = everybody.begin_set("flights")
    refused = [
        lambda: sales.put(b"a", job_id="flights"),
        lambda: sales.put(b"a"),
        lambda: sales.get(*key_of(blob)),
        lambda: sales.refer(*key_of(blob), "viewer:2"),
        lambda: sales.drop(*key_of(blob), "viewer:1"),
        lambda: sales.drop_owner("viewer:1"),
        lambda: sales.finish("flights"),
        lambda: sales.begin_set("flights"),
        lambda: sales.complete_set(upload_set),
        lambda: sales.page("flights"),
        sales.page,
        lambda: sales.references(owner="viewer:1"),
        lambda: sales.references(job_id="flights"),
        lambda: sales.verify("flights"),
        sales.verify,
        lambda: sales.sweep(dry_run=True),
    ]
    for call in refused:
        with pytest.raises(AccessDeniedError, match="does not open"):
            call()
    assert world.owners(blob) == ["viewer:1"]
    assert everybody.complete_set(upload_set) == 0
    assert everybody.drop_owner("viewer:1") == 1


def test_a_request_with_no_token_or_an_unknown_one_is_answered_with_401(url: str, tmp_path: Path) -> None:
    with client_of(url) as client, pytest.raises(AccessDeniedError, match="requires a bearer token"):
        client.page("sales")
    unknown = written(tmp_path / "unknown", "0" * 30)
    with client_of(url, token_file=unknown) as client:
        with pytest.raises(AccessDeniedError, match="not known"):
            client.put(b"a", job_id="sales")
        with pytest.raises(AccessDeniedError, match="not known"):
            client.drop_owner("viewer:1")
    answer = urllib3.request("GET", f"{url}/blobs", headers={"authorization": f"Basic {ALL}"})
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    answer = urllib3.request("GET", f"{url}/blobs", headers={"authorization": f"Bearer {SALES}"})
    assert (answer.status, answer.json()["error"]) == (403, "AccessDeniedError")


def test_a_file_that_changes_is_read_again_by_server_and_client(
    sales: BlobClient, tokens: Path, tmp_path: Path
) -> None:
    newer = "0e3e4" * 6
    written(tokens, f"{newer} sales\n")
    with pytest.raises(AccessDeniedError, match="not known"):
        sales.page("sales")
    written(tmp_path / "sales", newer)
    assert sales.page("sales") == ()


@pytest.mark.parametrize("text", ["short *", SALES, "# nothing\n"])
def test_a_malformed_token_file_is_refused_at_the_start_and_ignored_later(
    sales: BlobClient, tokens: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    written(tokens, text)
    with pytest.raises(InvalidInputError, match=str(tokens)):
        BearerTokens(tokens)
    assert sales.page("sales") == ()
    assert "the earlier tokens stay valid" in caplog.text
    assert SALES not in caplog.text


def test_a_token_file_that_others_can_read_is_refused(tokens: Path) -> None:
    tokens.chmod(0o644)
    with pytest.raises(InvalidInputError, match="chmod 600"):
        BearerTokens(tokens)
    with (
        pytest.raises(InvalidInputError, match="chmod 600"),
        client_of("http://127.0.0.1:1", token_file=tokens),
    ):
        pass
    with pytest.raises(InvalidInputError, match="No such file"):
        BearerTokens(tokens.with_name("missing"))


def test_without_tokens_the_server_accepts_only_local_connections() -> None:
    with pytest.raises(AccessDeniedError, match="--token-file"):
        listen("0.0.0.0", 0, allow_remote=False)
    for host in ("127.0.0.1", "localhost"):
        listen(host, 0, allow_remote=False).close()
    listen("0.0.0.0", 0, allow_remote=True).close()
    with pytest.raises(InvalidInputError, match="name another"):
        listen("256.0.0.1", 0, allow_remote=True)


def test_an_unknown_set_reveals_no_secret_and_belongs_to_no_job(sales: BlobClient) -> None:
    with pytest.raises(FencedError, match="complete, or was given up"):
        sales.complete_set("0" * 16)  # type: ignore[arg-type]


def test_a_token_grants_no_access_to_the_sets_of_other_jobs_or_of_the_server(
    sales: BlobClient, everybody: BlobClient, world: BlobWorld
) -> None:
    of_flights = everybody.begin_set("flights")
    of_server = upload_set_of(sales.put(b"a", job_id="sales").blob_key)
    for upload_set in (of_flights, of_server):
        with pytest.raises(ConflictError, match="is for other blobs"):
            sales.put(b"b", job_id="sales", upload_set=upload_set)
        with pytest.raises(AccessDeniedError, match="does not open"):
            sales.complete_set(upload_set)
    assert [blob.upload_set for blob in sales.page("sales")] == [""]
    assert sum(1 for _ in world.server.stores.local.blobs("sales")) == 1
    assert everybody.complete_set(of_flights) == 0


@pytest.mark.parametrize("pattern", ["?", "**"])
def test_only_a_star_grants_access_to_calls_that_concern_several_jobs(tokens: Path, pattern: str) -> None:
    written(tokens, f"{SALES} {pattern}\n{ALL} sales *\n")
    known = TokenFile(tokens)
    opened = [known.grant_of(f"Bearer {token}").opens("*") for token in (SALES, ALL)]
    assert opened == [False, True]
