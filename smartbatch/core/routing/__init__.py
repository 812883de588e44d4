"""Which route a list of requests takes, and when a batch has to be taken back.

- ``workload``: what a list takes: tokens and money.
- ``offers``: what is open now, how fast it is and what it costs.
- ``options``: what the caller asks, and each open route with its forecast.
- ``choice``: the option that is chosen, and why; from how many requests on a batch pays.
- ``explanation``: a decision in words, and as the text that a store keeps.
- ``outcome``: what a decision really took.
- ``rescue``: when the rescue of a batch begins, and which shards of a running job are taken back now.
"""
