"""Challenges of sellers: read them, choose an offer, build the headers that answer. No I/O."""
