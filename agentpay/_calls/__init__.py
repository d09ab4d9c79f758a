"""What one call of the client is: its arguments, options, settings and retries. No I/O."""
