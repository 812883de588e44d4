"""Where jobs outlive their processes: one SQLite file, or a PostgreSQL server."""

from smartbatch.jobs.store.base import LeaseLost, Store
from smartbatch.jobs.store.opening import open_store

__all__ = ["LeaseLost", "Store", "open_store"]
