"""What crosses the wire beside /v1: models and endpoint tables of sessions, console and sandbox."""
