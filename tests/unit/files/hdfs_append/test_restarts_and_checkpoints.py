"""HDFS Append and Truncates, section "Namenode Restarts and Checkpoints"."""

from __future__ import annotations

from tests.support.files.file_world import FileWorld


def test_entries_of_files_are_verified_and_restored(world: FileWorld) -> None:
    files = world.process()
    files.make_directory("/logs")
    world.write(files, "/logs/a.log")
    world.write(files, "/logs/b.log")
    files.truncate("/logs/a.log", 9)
    files.rename("/logs/a.log", "/a.log")
    files.delete("/logs", recursive=True)
    files.remove_deleted()

    assert world.journals.verify().findings == ()
    world.journals.checkpoint()
    world.write(files, "/c.log")
    before = world.journals.rows()
    world.journals.restore(with_entries=True)
    after = world.journals.rows(world.journals.spare_url)
    for table in ("inode", "file", "file_block", "file_member", "volume"):
        assert after[table] == before[table]
