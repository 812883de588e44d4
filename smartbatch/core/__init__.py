"""Decisions, without threads, I/O, clock or randomness: ``now`` and ``rng`` are arguments.

- :mod:`~smartbatch.core.limits`: whether and when a call may be sent, or retried.
- :mod:`~smartbatch.core.batching`: which requests share a call or a batch.
- :mod:`~smartbatch.core.routing`: which route a list of requests takes, and when a batch is cancelled.
- :mod:`~smartbatch.core.forecast`: how long calls and batches take.
- :mod:`~smartbatch.core.preparation`: checks of requests before they are sent, and of structured answers.

Objects with state are not thread-safe unless they say so: the caller holds one lock.
"""
