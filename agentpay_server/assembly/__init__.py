"""Opens the database and the chain of a configuration, and connects all services."""
