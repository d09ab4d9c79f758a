"""Where each plug-in of the server is, below `agentpay_server`. Its core works without them."""

PLUG_INS = {
    "payments": ("payments",),
    "channels": ("payments.channels",),
    "cluster": ("chain.rpc",),
    "guards": ("engine.watches",),
    "postgres": (
        "database.postgres",
        "database.postgres_batches",
        "database.postgres_connections",
        "database.postgres_schema",
        "database.postgres_writes",
    ),
    "migrations": ("database.migrations",),
    "console": ("http.dashboard", "dashboard"),
    "paywall": ("testkit.paywall",),
    "facilitator": ("testkit.facilitator",),
    "node": ("testkit.node",),
    "scenes": ("testkit.scenes",),
}
ROOMS = tuple(f"agentpay_server.{room}" for rooms in PLUG_INS.values() for room in rooms)
