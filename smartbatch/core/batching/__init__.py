"""Grouping of requests into calls and batches.

- ``request_batch``: the requests of one call, their states, and when they are sent.
- ``packing``: combining several prompts into one, and splitting its answer; ``prompts_about_packs`` are sent
  alone.
- ``sharding``: dividing a job into batches, and checking that the answers of a batch belong to its requests.
"""
