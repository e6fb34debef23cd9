"""A lease that is gone stays gone: whoever held it learns that the job is no longer theirs."""

from __future__ import annotations

import pytest

from storage_core.commit.folder import JobFolder
from storage_core.commit.lease import LeaseState, leases_for
from storage_core.errors import FencedError
from tests.commit_world import World, write


@pytest.mark.parametrize("call", ["renew", "park", "free"])
def test_a_lease_is_not_brought_back_to_life_after_the_clean_up(world: World, call: str) -> None:
    job = world.open_job("sales")
    write(job, "t", {"a.csv": b"1"})
    folder, leases = JobFolder(world.store, job.job_id), leases_for(world.settings, world.clock)
    zombie = leases.take(folder, job.job_attempt)
    world.attach(job.job_id).commit()
    calls = {
        "renew": lambda: leases.renew(folder, zombie),
        "park": lambda: leases.park(folder, zombie, 60.0),
        "free": lambda: leases.free(folder, zombie),
    }

    with pytest.raises(FencedError, match="changes nothing more"):
        calls[call]()

    assert leases.look(folder).state is LeaseState.UNKNOWN
    assert "_lockgate/jobs/sales-g1/lease.json" not in {
        info.key for page in world.store.pages(folder.prefix) for info in page
    }
    assert world.recover() == []
    assert world.visible() == {"a.csv": b"1"}
    job.close()
