"""Runs: the rows of a file, asked as stored requests, and an output that survives the process."""
