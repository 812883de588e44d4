"""The threads: queue, collector, dispatcher, router and their lifecycle."""
