"""The HTTP interface: binds the endpoint tables to the services."""
