"""A deterministic simulation of whole servers: years of failures in minutes, repeatable by seed.

Unmodified servers, one database, one cluster, webhook receivers and agents with the real SDK run in one
thread on virtual time. `world.py` assembles a simulation, `plan.py` draws its parameters, `invariants.py` and
`final_checks.py` check the rules, `shrinking.py` minimizes a failing run. `trials.py` runs an agent of yours
in such a world: `simulate(agent, seeds=…, minutes=…)`.

The simulator uses only the SDK, HTTP, the database runner and JSON-RPC. Its database runs one unit at a time,
so it cannot find deadlocks or missing row locks; tests on PostgreSQL do.
"""

from agentpay_lab.simulation.trials import AgentWorld, Failure, Order, Simulated, simulate

__all__ = ["AgentWorld", "Failure", "Order", "Simulated", "simulate"]
