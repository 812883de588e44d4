"""A list's way: what the client knows, which route a list takes, and a list that goes by a job."""
