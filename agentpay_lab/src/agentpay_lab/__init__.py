"""A laboratory for the agent payment service: whole servers under faults on virtual time, and crash tests.

It starts servers as users do, or on an `Edge` of its own: all that a server reaches, and its entropy. The
server does not know it. `tests/integration/test_layers.py` declares what it may use of the server.
"""
