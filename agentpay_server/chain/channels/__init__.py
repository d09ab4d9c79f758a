"""The payment-channel program of MPP sessions and x402 `upto`.

`codecs.py` has what crosses the chain: addresses, vouchers, instructions, accounts.
"""
