"""Which route a list of requests takes, and when a batch has to be taken back.

- ``constraints``: what the caller asks for: deadline, budget, preference.
- ``workload``: what a list takes: tokens and money.
- ``offers`` and ``throughput``: what is open now, how fast it is and what it costs.
- ``options``: each open route with its forecast; ``risk`` says when the rescue of a batch would begin.
- ``choice``: the option that is chosen, and why; from how many requests on a batch pays.
- ``rescue``: which shards of a running job are taken back now, so that its deadline is met.
"""
