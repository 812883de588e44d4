"""Threads that send requests in real time: queue, collector, dispatcher, router and their lifecycle."""
