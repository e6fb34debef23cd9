"""A large message is a blob with one reference per receiver, and is deleted once all have acknowledged it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockgate.storage_core.blobs import claim_check as module
from lockgate.storage_core.blobs.claim_check import ClaimCheck, configured_claim_check
from lockgate.storage_core.errors import CorruptBlobError, FencedError, ObjectNotFoundError
from lockgate.storage_core.settings import load_settings
from tests.support.blobs.cache import CacheWorld, cache_world
from tests.support.blobs.server import INTERVAL_S, damage

LAPSE_S = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[CacheWorld]:
    with cache_world(tmp_path) as world:
        yield world


def messages_of(world: CacheWorld) -> ClaimCheck:
    return ClaimCheck(world.cache(), lapse_s=LAPSE_S)


def owners(world: CacheWorld) -> list[str]:
    return sorted(reference.owner for reference in world.server.references())


def test_a_message_is_kept_for_its_receiver_until_it_has_acknowledged(world: CacheWorld) -> None:
    messages = messages_of(world)
    envelope = messages.offload(b"message", owner="receiver:1")
    (blob,) = world.server.page()
    assert (blob.guarantee, blob.use, blob.size_bytes) == ("recreatable", "message", envelope.size_bytes)
    assert owners(world) == ["receiver:1"]

    assert messages.recall(envelope) == b"message"
    assert owners(world) == ["receiver:1"]
    messages.acknowledge(envelope)
    messages.acknowledge(envelope)

    assert owners(world) == []
    world.blobs.clock.now += INTERVAL_S
    world.server.sweep(dry_run=False)
    assert list(world.server.page()) == []


def test_a_message_that_its_receiver_never_fetches_lapses(world: CacheWorld) -> None:
    messages = messages_of(world)
    messages.offload(b"message", owner="receiver:1")
    messages.offload(b"result", owner="receiver:result:1", lapse_s=2 * LAPSE_S)
    world.blobs.clock.now += LAPSE_S
    world.server.sweep(dry_run=False)
    assert owners(world) == ["receiver:result:1"]
    world.blobs.clock.now += LAPSE_S
    world.server.sweep(dry_run=False)
    assert owners(world) == []


def test_equal_bytes_of_one_sending_share_a_blob_with_one_reference_per_receiver(world: CacheWorld) -> None:
    messages = messages_of(world)
    sent = [messages.offload(b"same", owner="receiver:1", sending="group") for _ in range(3)]
    other = messages.offload(b"other", owner="receiver:1", sending="group")
    apart = messages.offload(b"other", owner="receiver:1", sending="another")
    assert len({envelope.blob_key for envelope in sent}) == 1
    assert len({envelope.owner for envelope in sent}) == 3
    assert len({sent[0].blob_key, other.blob_key, apart.blob_key}) == 3

    messages.acknowledge(sent[0])
    messages.acknowledge(sent[1])
    assert messages.recall(sent[2]) == b"same"
    assert sent[2].owner in owners(world)


def test_a_message_recalled_within_a_sending_is_forwarded_without_its_bytes(world: CacheWorld) -> None:
    first = messages_of(world).offload(b"message", owner="receiver:1")
    messages = messages_of(world)
    messages.recall(first, sending="task")
    again = messages.offload(b"message", owner="receiver:1", sending="task")
    messages.acknowledge(first)
    assert again.blob_key == first.blob_key
    assert owners(world) == [again.owner]


def test_a_deleted_shared_blob_is_put_again(world: CacheWorld) -> None:
    messages = messages_of(world)
    first = messages.offload(b"message", owner="receiver:1", sending="group")
    messages.acknowledge(first)
    for _ in range(2):
        world.blobs.clock.now += INTERVAL_S
        world.server.sweep(dry_run=False)
    again = messages.offload(b"message", owner="receiver:2", sending="group")
    assert again.blob_key != first.blob_key
    assert messages.recall(again) == b"message"


def test_uncounted_receivers_do_not_acknowledge(world: CacheWorld) -> None:
    messages = messages_of(world)
    envelope = messages.offload(b"message", owner="receiver:1", is_counted=False)
    messages.acknowledge(envelope)
    assert owners(world) == ["receiver:1"]


def test_messages_of_a_failed_job_are_released_and_an_ended_job_accepts_none(world: CacheWorld) -> None:
    messages = messages_of(world)
    envelope = messages.offload(b"message", owner="receiver:1", job_id="sales")
    world.server.fail("sales")
    assert owners(world) == []
    assert messages.recall(envelope) == b"message"
    world.server.finish("sales")
    with pytest.raises(FencedError, match="has ended"):
        messages.offload(b"message", owner="receiver:1", job_id="sales")


def test_recalling_a_missing_or_damaged_message_raises_an_error(world: CacheWorld) -> None:
    messages = messages_of(world)
    gone = messages.offload(b"gone", owner="receiver:1")
    broken = messages.offload(b"broken", owner="receiver:2")
    world.server.stores.local.delete(gone.job_id, gone.blob_key)
    damage(world.server.stores.local.path_of(broken.job_id, broken.blob_key))
    with pytest.raises(ObjectNotFoundError, match=gone.blob_key):
        messages.recall(gone)
    with pytest.raises(CorruptBlobError, match=broken.blob_key):
        messages.recall(broken)


def test_messages_read_once_are_not_cached(world: CacheWorld) -> None:
    messages = messages_of(world)
    envelope = messages.offload(b"result", owner="receiver:result:1")
    assert messages.recall(envelope, is_read_once=True) == b"result"
    assert world.server.fetched == []
    messages.recall(envelope)
    assert world.server.fetched == [envelope.blob_key]


def test_without_a_journal_one_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_is_warned", False)
    settings = load_settings(home=tmp_path, journal_url="none")
    with caplog.at_level(logging.WARNING, "lockgate.blobs"):
        assert configured_claim_check(settings) is None
        assert configured_claim_check(settings) is None
    assert caplog.text.count("are sent through the broker in full") == 1
