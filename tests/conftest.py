"""How Hypothesis runs: a slow machine is no failure, and every failure prints how to repeat it."""

from hypothesis import settings

settings.register_profile("agentpay", deadline=None, print_blob=True)
settings.load_profile("agentpay")
