"""Tables: the prompts of their rows, and results given back as tables."""
