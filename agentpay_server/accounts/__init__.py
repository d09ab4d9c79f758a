"""Agent accounts: their creation, policies, deposits and history."""
