"""Bridges to other frameworks, one file each. Empty in this version."""
