"""What the incidents of a store name."""

from __future__ import annotations

from smartbatch import BatchingClient


def named_in_incidents(store: str) -> int:
    with BatchingClient("sim:demo", store=store) as client:
        details = [incident.detail for job in client.jobs() for incident in job.incidents()]
    return sum(int(detail.split()[0].replace(",", "")) for detail in details)
