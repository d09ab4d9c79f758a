"""One call of the client without I/O: arguments, options, settings, requests and retries."""
