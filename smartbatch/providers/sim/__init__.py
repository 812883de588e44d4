"""The embedded provider: deterministic answers without a key or a network."""
