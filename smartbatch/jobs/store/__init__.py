"""Where jobs outlive their processes: one SQLite file, or a PostgreSQL server."""

from smartbatch.jobs.store.leases import Counted
from smartbatch.jobs.store.opening import open_store
from smartbatch.jobs.store.sql_store import SqlStore

__all__ = ["Counted", "SqlStore", "open_store"]
