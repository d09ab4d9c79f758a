"""What every service works with: the database, the chain, the keys, the clock, chance and settings."""

from attrs import field, frozen

from agentpay_server.chain.custody import Signer
from agentpay_server.chain.protocol import WatchedChain
from agentpay_server.clock import Clock
from agentpay_server.database.runner import Database
from agentpay_server.metrics import Metrics
from agentpay_server.randomness import Identifiers, Randomness
from agentpay_server.settings import Settings
from agentpay_server.tasks import Tasks, Wakeup
from agentpay_server.vault import Vault


@frozen(kw_only=True)
class Context:
    """The parts that are wired once, in `server.py`, and shared by all services.

    Attributes:
        database: runs units of work.
        chain: the chain.
        signer: holds the keys that sign.
        clock: tells the time.
        randomness: source of keys.
        identifiers: source of identifiers.
        settings: how the server behaves.
        tasks: the tasks that the server owns.
        wakeup: tells whoever waits for due work that a due time has changed.
        vault: seals secrets at rest.
        metrics: what is counted.
        is_cluster: whether the chain is a cluster: what comes in from outside is booked some time later.
    """

    database: Database
    chain: WatchedChain
    signer: Signer
    clock: Clock
    randomness: Randomness
    identifiers: Identifiers
    settings: Settings
    tasks: Tasks
    wakeup: Wakeup
    vault: Vault
    metrics: Metrics = field(factory=Metrics)
    is_cluster: bool = False
