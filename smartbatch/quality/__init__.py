"""Judges answers: samples, intervals, comparisons, labels and failures. Nothing here sends or stores."""
