"""Durable batch jobs. Empty in this version: every request goes in real time."""
