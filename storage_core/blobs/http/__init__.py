"""Blobs over HTTP: a client, and a server as an application that another one may mount.

Only `server` imports FastAPI. Client and server share `messages` and `token_lines`, and are independent.
"""
