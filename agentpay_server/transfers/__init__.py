"""Transfers: from a request to money moved, refused or provably not moved."""
