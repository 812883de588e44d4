"""Limits that decide whether and when a call may be made: rate limits, budgets, circuit breaker, retries.

- ``quota``: the rate limit of one provider scope and model, combined from ``token_bucket`` (configured
  limits), ``reported_limits`` and ``reported_bucket`` (limits reported in answers), ``adaptive_limit``
  (unreported limits) and ``cooldown``.
- ``lease`` and ``shared_limit``: a limit shared by several processes.
- ``budget`` and ``budget_reservations``: money.
- ``circuit_breaker`` and ``throttle``: reactions to a provider that is down or fails some of the calls.
- ``retry`` and ``failures``: the meaning of an error, and whether the call is repeated.
- ``model_controls``: pauses and limits that users set while work is running.

``look`` returns the earliest time a call may be sent, and ``take`` counts a call. Times are monotonic
seconds.
"""
