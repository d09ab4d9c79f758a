"""What crosses the wire of the sandbox, and the table of every endpoint that the server serves."""
