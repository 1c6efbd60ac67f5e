"""Tests that take long, each with a command of its own."""
