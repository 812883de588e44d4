"""Judges answers: samples, intervals, comparisons, labels and failures. It sends and stores nothing."""
