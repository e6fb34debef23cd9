"""Parts of a server: sockets, TLS, limits, tokens, request bodies, errors."""
