"""Looks for what usually goes wrong, and names the remedy."""
