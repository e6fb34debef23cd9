"""Blobs against a small model of them: any order of puts, references, sweeps, deaths and outages."""
