"""A model without a table. It represents the store, so that Django has a name and a permission for it."""

from __future__ import annotations

from typing import Any

from django.db import models


class _NoRows(models.Manager):
    """Returns no rows and sends no query, for example to ``dumpdata``."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class StoredJob(models.Model):
    id = models.CharField(primary_key=True, max_length=40)
    objects = _NoRows()

    class Meta:
        app_label = "smartbatch"
        managed = False
        default_permissions = ("view",)
        base_manager_name = "objects"
        verbose_name = "job"
