"""Files and batches: storage, timeline, faults and results, without the differences between the APIs."""
