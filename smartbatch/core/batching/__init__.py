"""Which requests travel together.

- ``window``: when the waiting requests of a lane are sent as one call, and the states of that call.
- ``packing`` and ``packing_health``: several prompts in one prompt, the answers taken apart, and whether that
  pays.
- ``sharding``: how a job's requests are cut into batches within the provider's limits.
- ``crosscheck``: whether the answers of a batch belong to their requests.
"""
