"""HTTP for the blob server, the volume server and their clients. Only `server` imports Starlette."""
