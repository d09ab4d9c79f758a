"""What crosses the wire beside /v1: models and endpoint tables of the console and the sandbox."""
