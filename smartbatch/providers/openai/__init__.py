"""OpenAI's API, and every server that implements it."""
