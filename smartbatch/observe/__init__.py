"""Listeners to events: metrics, logs, progress, reporters."""
