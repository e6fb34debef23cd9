"""Blobs over HTTP.

    wire               what client and server say to each other
    connection         from here to a server: retries, errors, the stamps that travel
    outgoing           a source, on its way
    app                the routes, as an application that another one may mount
    serving            that application at a port, over TLS or not

Only what serves imports FastAPI: `app` and what it is made of.
"""
