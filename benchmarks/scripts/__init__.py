"""Programs that run with the Python of a measured environment."""
