"""PostgreSQL as the store: its connections, statements in batches and schema."""
