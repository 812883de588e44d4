"""How long calls and batches take, learned from those that ended.

- ``forecaster``: the forecast of one kind of call or batch, from a prior and the latest observations.
- ``distribution``: a distribution made of weighted points, some of them right-censored.
- ``turnaround``: how long the batches of a running job still take.
"""
