"""A seller's part in a payment: check it, add the seller's signature, broadcast it.

Sellers of x402 leave that to a facilitator, and `service.py` is one for test chains; sellers of MPP do it
themselves. Both follow the rules of the field's own packages, where these differ the stricter one.
"""
