"""Limits and budgets that processes share: the thread that leases them, and the back ends that store them."""
