"""A deterministic simulation of whole servers: years of failures in minutes, each repeatable by its seed.

Unmodified servers, one database, one cluster, webhook receivers and agents with the real SDK run in one
thread on virtual time. All chance follows from one seed. `world.py` puts a world together, `plan.py` says
what a seed draws, `judges.py` and `ending.py` hold what must be true, `shrinking.py` makes a failure small.

The simulator works through the SDK, HTTP, the runner of the database and the JSON-RPC of the cluster, and
knows no table and no service. Deadlocks and missing row locks are beyond it, since its database runs one unit
at a time: the tests on PostgreSQL look for those.
"""
