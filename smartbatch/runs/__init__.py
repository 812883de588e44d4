"""Runs: the rows of a file as stored requests, and an output that survives the process."""
