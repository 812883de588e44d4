"""The route of a list, lists sent as jobs, and single requests that are stored."""
