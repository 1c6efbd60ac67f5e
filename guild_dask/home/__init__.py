"""Every file in the Guild home: runs, claims, attempts, heartbeats and requests of users.

Has all knowledge of Guild's private formats; knows no futures and no workers. May import plan and host.
Start at `claims`, which explains why no run is lost or started twice; `run_queue` lists, claims and settles them.
"""
