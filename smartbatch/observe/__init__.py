"""Event listeners: metrics, logs, progress displays and reporters."""
