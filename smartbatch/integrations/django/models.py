"""The model that stands for the store, so that Django knows a name and a permission; it has no table."""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):
    """What asks for all rows of a database, as ``dumpdata`` does, finds none and sends no query."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class StoredJob(models.Model):
    """A job of the store."""

    id = models.CharField(primary_key=True, max_length=40)
    objects = _NoRows()

    class Meta:
        app_label = "smartbatch"
        managed = False
        default_permissions = ("view",)
        base_manager_name = "objects"
        verbose_name = "job"
