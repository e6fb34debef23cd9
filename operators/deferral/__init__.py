"""Wait without a worker slot: a trigger asks, and the task is resumed when there is something to do."""
