"""Long tests, each with its own command."""
