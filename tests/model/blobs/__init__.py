"""Model-based tests of blobs: puts, references, sweeps, process deaths and outages in any order."""
