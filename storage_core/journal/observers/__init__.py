"""Observers: hot standbys that serve a journal's reads, and clients whose reads never go back in time.

    with configured_reads(settings) as client:
        jobs = client.read(queries.jobs)      # at an observer that has all that this process has seen

Source: the observers of HDFS: state ids, msync.
"""
