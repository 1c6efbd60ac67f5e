"""A page that shows runs, workers and outputs as they change. Read-only; what comes from runs is text, never markup."""
