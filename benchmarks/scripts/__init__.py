"""Programs that are run by the Python of an environment that is measured."""
