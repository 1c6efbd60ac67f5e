"""The parts of the chaos test; tests/chaos.py puts them together."""
