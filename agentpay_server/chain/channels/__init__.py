"""The payment-channel program of MPP sessions and x402 `upto`.

`codecs.py` has what crosses the chain: addresses, vouchers, instructions, accounts. `channels.so` is the
program that embedded chains run; `scripts/channel_program.py` builds it from `channels.c`.
"""
