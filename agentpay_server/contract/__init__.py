"""The sandbox's wire format, and the table of every endpoint that the server serves."""
