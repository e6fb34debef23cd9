"""The broker: Redis, its keys, and the one that Lockgate starts for those who run none."""
