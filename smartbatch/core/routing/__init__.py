"""Which route a list of requests takes, and when a batch has to be cancelled.

- ``workload``: what a list needs: tokens and money.
- ``offers``: the available routes, their speed and their price.
- ``options``: the constraints, and a forecast for each available route.
- ``choice``: the chosen option and the reason, and the number of requests from which a batch pays.
- ``explanation``: a decision in words, as parts of a page, and in its stored form.
- ``outcome``: actual time and cost of a decision.
- ``rescue``: when the rescue of a batch begins, and which shards of a running job are cancelled now.
"""
