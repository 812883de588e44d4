"""Benchmarks: always ratios within one run, against a raw pool or an ideal client; never bare times."""
