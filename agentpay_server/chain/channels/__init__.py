"""The payment-channel program of MPP sessions and x402 `upto`.

`codecs.py` has what crosses the chain: addresses, vouchers, instructions, accounts. `program.py` has the
program as embedded chains run it; `scripts/channel_program.py` builds that from `channels.c`.
"""
