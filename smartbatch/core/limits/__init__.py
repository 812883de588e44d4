"""Whether and when a call may be made: rate limits, money, circuit breaker, retries.

- ``quota``: the rate limit of one provider scope and model: the latest of ``token_bucket`` (configured
  limits), ``reported_limits`` and ``reported_bucket`` (limits reported in answers), ``adaptive_limit``
  (limits that nobody reports) and ``cooldown``.
- ``lease`` and ``shared_limit``: a limit shared by several processes.
- ``budget`` and ``budget_reservations``: money.
- ``circuit_breaker`` and ``throttle``: a provider from which no call, or not every call, returns an answer.
- ``retry`` and ``failures``: whether and when a failed call is repeated, and what its error means.
- ``model_controls``: pauses and limits set by users while work is running.

``look`` returns the earliest time a call may be sent; ``take`` counts it. Times are monotonic seconds.
"""
