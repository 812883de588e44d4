"""Views of jobs, lists and processes, and their renderers."""
