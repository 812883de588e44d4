"""Anthropic's API: messages and Message Batches."""
