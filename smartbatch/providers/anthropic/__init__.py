"""Anthropic's API through the vendor's SDK."""
