"""Creates prompts from table rows, and tables from results."""
