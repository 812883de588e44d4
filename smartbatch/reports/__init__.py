"""Pages of HTML and charts made by the server, and the report of a job or a list."""
