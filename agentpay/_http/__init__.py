"""The way to the service: HTTP clients, their connections, deadlines and failures."""
