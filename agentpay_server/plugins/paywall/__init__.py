"""Paid APIs for tests: a seller that speaks x402 and MPP, honest or hostile.

`Paywall` sells over httpx transports, as an ASGI application, or on a port, and settles the payments on a
test chain. It also sells through payment channels: by session of MPP, and up to a maximum by x402. `Mode`,
`SessionMode` and `UptoMode` list its possible misbehavior. `HostilePayer` is the other side: it tries to get
more from a seller than it pays for.
"""
