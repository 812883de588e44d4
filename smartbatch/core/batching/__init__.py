"""Which requests share a call or a batch.

- ``request_batch``: the requests of one call, their states, and when they are sent.
- ``packing``: several prompts in one prompt, and its answer split again; ``prompts_about_packs`` are sent
  alone.
- ``sharding``: how a job is cut into batches, and whether the answers of a batch belong to its requests.
"""
