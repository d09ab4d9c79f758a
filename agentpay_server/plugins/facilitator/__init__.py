"""A seller's part in a payment: check it, add the seller's signature, broadcast it.

Sellers of x402 delegate that to a facilitator, such as `service.py` for test chains; sellers of MPP do it
themselves. Both follow the rules of the established packages, and the stricter one where those differ.
"""
