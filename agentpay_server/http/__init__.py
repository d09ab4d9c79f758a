"""HTTP: the endpoint tables bound to the services."""
