"""The views: the published state, the log, the page, the report, notifications and scalars.

Decides nothing for the loop and cannot delay it. May import plan, host and home; never cluster or scheduler.
Start at `state`, the value that all views show; `publisher` writes it, `schedulers` reads it.
"""
