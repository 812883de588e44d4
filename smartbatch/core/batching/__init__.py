"""Which requests travel together.

- ``window``: when the waiting requests of a lane are sent as one call, and the states of that call.
- ``packing``: several prompts in one prompt, and the answers taken apart.
- ``sharding``: how a job's requests are cut into batches within the provider's limits.
- ``crosscheck``: whether the answers of a batch belong to their requests.
"""
