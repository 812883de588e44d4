"""Integrations with other frameworks, one file or package each."""
