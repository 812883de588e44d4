"""Decisions, without threads, I/O, clock or randomness: ``now`` and ``rng`` are arguments.

- :mod:`~smartbatch.core.limits`: whether and when a call may be made, or made again.
- :mod:`~smartbatch.core.batching`: which requests travel together, in a call or in a batch.
- :mod:`~smartbatch.core.routing`: which route a list of requests takes, and when a batch is taken back.
- :mod:`~smartbatch.core.forecast`: how long calls and batches take.
- :mod:`~smartbatch.core.preparation`: what a request is before it is sent, and what an answer stands for.

Objects with a state are not thread-safe unless they say so: the caller holds one lock.
"""
