"""Blobs over HTTP: a client, and a server as an application that another one may mount.

`client` and what it imports know no FastAPI. Client and server share `messages`.
"""
