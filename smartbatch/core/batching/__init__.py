"""Grouping of requests into calls and batches.

- ``request_batch``: the requests of one call, their states, and when they are sent.
- ``packing``: several prompts combined into one, and its answer split again; ``prompts_about_packs`` are
  sent alone.
- ``sharding``: a job divided into batches, and a check that answers of a batch belong to its requests.
"""
