"""The parts of the chaos test; tests/long/chaos.py puts them together."""
