"""The application as Airflow's API server mounts it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from lockgate.plugins.airflow.access import airflow_host
from lockgate.plugins.web.application import web_app

STATIC: Final = Path(__file__).parent / "static"


def application() -> FastAPI:
    """Return the pages and the API, with the card and the icons of Airflow's own pages beside them."""
    app = web_app(airflow_host())
    # Constant files of this package: they are public, like Airflow's own.
    app.mount("/airflow", StaticFiles(directory=STATIC), name="airflow")
    return app
