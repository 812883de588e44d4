"""Whether and when a call may be made: rate limits, money, circuit breaker, retries.

- ``quota``: the rate limit of one provider scope and model. It combines ``bucket`` (configured limits),
  ``header_limits`` and ``reported_bucket`` (limits that answers report) with what refusals prove.
- ``breaker``: stops calls to a provider that fails.
- ``retry`` and ``backoff``: whether a failed call is made again, and after what wait.
- ``classifiers``: the user's own verdicts on errors.
- ``budget`` and ``budget_reservations``: money that may be spent.
- ``suspension``: features that are left off for a while after they failed: the slower tier, packing.

A gate is asked with ``look``, which returns the earliest time a call may go, and told with ``take`` that the
call goes. Times are monotonic seconds.
"""
