"""The store of jobs: one interface in the protocol's words, on SQLite and on PostgreSQL."""
