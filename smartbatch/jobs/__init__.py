"""Durable batch jobs. Called, ``smartbatch.jobs()``, it is :func:`smartbatch.shortcuts.jobs`."""
