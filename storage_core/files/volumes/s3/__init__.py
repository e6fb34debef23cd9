"""A volume in an object store: each replica is a log of segments that are created if absent."""
