"""Chooses the route of a list of requests, and decides when a batch must be cancelled.

- ``workload``: the requests, tokens and money of a list.
- ``offers``: speed and price of the available routes.
- ``options``: the constraints, and a forecast for each available route.
- ``choice``: the chosen option with its reason, and the minimum number of requests for a batch.
- ``explanation``: a decision in words and as parts of a page.
- ``outcome``: actual time and cost of a decision, and its stored form.
- ``rescue``: when to withdraw the batches of a running job.
"""
