"""What a seller does with a payment that it is handed: check it, add its signature, broadcast it.

Sellers of x402 leave that to a facilitator, and `service.py` is one for test chains; sellers of MPP do it
themselves. Both follow the rules of the field's own packages, where these differ the stricter one.
"""
