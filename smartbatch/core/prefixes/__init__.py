"""Prefixes that prompts share, and how much of their cost a provider's cache saves.

:mod:`~smartbatch.core.prefixes.rendering` writes a prompt in the order in which the provider reads it,
:mod:`~smartbatch.core.prefixes.tree` finds the prefixes that prompts share, and
:mod:`~smartbatch.core.prefixes.entries` decides which of them each call uses.
"""
