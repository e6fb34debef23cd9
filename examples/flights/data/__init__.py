"""The demo's data set, library and destination."""
