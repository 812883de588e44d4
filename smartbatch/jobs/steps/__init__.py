"""One step of one job: a remote call or two and the commits around them; ``runner`` picks the step."""
