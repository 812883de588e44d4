"""Decisions: pure code without threads, I/O, clock or dice; ``now`` and ``rng`` are arguments."""
