"""The database: tables, runners and statements."""
