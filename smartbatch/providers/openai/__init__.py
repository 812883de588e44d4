"""OpenAI's API and all compatible servers."""
