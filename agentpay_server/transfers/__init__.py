"""Transfers: from a request to money moved, refused or certainly not moved."""
