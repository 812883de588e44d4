"""The Django application. Nothing starts here, because this also runs before forks and in commands."""

from __future__ import annotations

from django.apps import AppConfig
from django.core import checks
from django.core.signals import request_finished, request_started, setting_changed

from smartbatch.integrations.django import host, system_checks


class SmartbatchConfig(AppConfig):
    name = "smartbatch.integrations.django"
    label = "smartbatch"
    verbose_name = "LLM requests"

    def ready(self) -> None:
        checks.register(system_checks.check_settings, system_checks.TAG)
        checks.register(system_checks.check_webhooks, system_checks.TAG, checks.Tags.urls)
        checks.register(system_checks.check_server, system_checks.TAG, checks.Tags.database)
        request_started.connect(host.request_begins)
        request_finished.connect(host.request_ends)
        setting_changed.connect(host.setting_changes)
