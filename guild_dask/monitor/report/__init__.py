"""The report of a scheduler, from the events in its run directory: as text, and as a page with charts."""
