"""Airflow's `celery_config_options`, with a record of the messages of its Celery application."""

from __future__ import annotations

from airflow.providers.celery.executors.default_celery import DEFAULT_CELERY_CONFIG

from tests.support.workers.message_records import record_messages

CONFIGURATION = dict(DEFAULT_CELERY_CONFIG)

record_messages("airflow")
