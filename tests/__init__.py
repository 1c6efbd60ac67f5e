"""The tests, in the rooms of the package."""
