"""The server of volumes: its volumes, and the calls over HTTP."""
