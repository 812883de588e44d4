"""Benchmarks, which report ratios within one run rather than absolute times."""
