"""Earlier versions of a table, and files that a revert makes live again."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from lockgate.storage_core.commit.destination.as_of import manifest_as_of
from lockgate.storage_core.commit.destination.log import DestinationLog
from lockgate.storage_core.commit.revert_to_turn import revert_to_turn
from tests.support.commit.destination import World
from tests.support.tables import publish


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)})


@pytest.mark.parametrize("in_place", [False, True])
def test_an_earlier_version_is_read_by_the_log_and_if_files_stay_in_place_by_the_table(
    world: World, in_place: bool
) -> None:
    world.keep(turns=9, in_place=in_place)
    publish(world, "a", {"day=1/a.parquet": rows(1)}, columns=[("x", "bigint")], tables=["delta"])
    publish(world, "b", {"day=2/b.parquet": rows(2)}, mode="replace")
    found = manifest_as_of(DestinationLog(world.store), 1)
    (path,) = map(found.path, found.files)

    assert pq.read_table(f"{world.url}/{path}")["x"].to_pylist() == [1]
    earlier = DeltaTable(world.url, version=0)
    if in_place:
        assert earlier.to_pyarrow_table()["x"].to_pylist() == [1]
    else:
        with pytest.raises(Exception, match="a-"):
            earlier.to_pyarrow_table()
    assert DeltaTable(world.url).to_pyarrow_table()["x"].to_pylist() == [2]


def test_files_that_are_live_again_have_their_statistics(world: World) -> None:
    world.keep(turns=9)
    publish(world, "a", {"a.parquet": rows(1, 5)}, columns=[("x", "bigint")], tables=["delta", "iceberg"])
    publish(world, "b", {"b.parquet": rows(2)}, mode="replace")
    receipt = revert_to_turn(world.url, 1, settings=world.settings, clock=world.clock).receipt
    assert receipt is not None
    assert receipt.tables_behind == ""
    (found,) = pa.table(DeltaTable(world.url).get_add_actions(flatten=True)).to_pylist()
    assert (found["min.x"], found["max.x"], found["num_records"]) == (1, 5, 2)
