"""The page of runs: a read-only view of runs, workers and outputs. Text of runs is never interpreted as markup."""
