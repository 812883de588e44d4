"""Adapters, one file per API."""
