"""The store of jobs, which outlive their processes: an SQLite file or a PostgreSQL server."""

from smartbatch.jobs.store.job_files import JobFiles
from smartbatch.jobs.store.leases import Counted
from smartbatch.jobs.store.sql_store import (
    SqlStore,
    check_place,
    default_place,
    is_server,
    open_store,
    resolved_place,
)

__all__ = [
    "Counted",
    "JobFiles",
    "SqlStore",
    "check_place",
    "default_place",
    "is_server",
    "open_store",
    "resolved_place",
]
