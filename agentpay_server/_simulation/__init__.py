"""A deterministic simulation of whole servers: years of failures in minutes, each repeatable by its seed.

Unmodified servers, one database, one cluster, webhook receivers and agents with the real SDK run in one
thread on virtual time. All randomness comes from one seed. `world.py` assembles a simulation, `plan.py` draws
its parameters, `judges.py` and `ending.py` check the rules, `shrinking.py` minimises a failing run.

The simulator uses the SDK, HTTP, the database runner and the cluster's JSON-RPC, and is independent of tables
and services. It cannot find deadlocks and missing row locks, because its database runs one unit at a time;
the tests on PostgreSQL look for those.
"""
