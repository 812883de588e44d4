"""How long calls and batches take, learned from those that ended.

- ``forecaster``: the forecast of one kind of call or batch, from a prior and observations.
- ``distribution``: a distribution made of weighted points, some of them right-censored.
- ``change_detection``: whether forecasts fit, and whether times have changed.
- ``turnaround``: how long the batches of a running job still take.
"""
