"""What happened in a scheduler's life, from the events in its run directory: as text, and as a page with charts."""
