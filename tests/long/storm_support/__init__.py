"""The parts of the storm; tests/long/storm.py puts them together."""
