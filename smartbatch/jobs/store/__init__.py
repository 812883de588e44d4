"""Where jobs outlive their processes: one SQLite file, or a PostgreSQL server."""

from smartbatch.jobs.records import LeaseLost
from smartbatch.jobs.store.base import Store
from smartbatch.jobs.store.opening import open_store

__all__ = ["LeaseLost", "Store", "open_store"]
