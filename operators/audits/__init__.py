"""Great Expectations suites over the staged rows of a job."""
