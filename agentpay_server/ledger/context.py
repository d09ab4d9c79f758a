"""The parts that all services share."""

from attrs import field, frozen

from agentpay_server.chain.custody import Signer
from agentpay_server.chain.protocol import Chain
from agentpay_server.database.clock_check import ClockCheck
from agentpay_server.database.runner import Database
from agentpay_server.platform.clock import Clock
from agentpay_server.platform.logs import Metrics
from agentpay_server.platform.randomness import Identifiers, Randomness
from agentpay_server.platform.settings import Settings
from agentpay_server.platform.tasks import Tasks, Wakeup
from agentpay_server.platform.vault import Vault


@frozen(kw_only=True)
class Context:
    """Created once in `server.py`.

    Attributes:
        clock_check: whether `clock` may be relied on; ask it before deciding about money.
        wakeup: notifies schedulers that a due time has changed.
        lasting_randomness: a source that no restore repeats, for what outlives one, such as keys.
        lasting_identifiers: identifiers from that source.
        is_cluster: deposits are posted some time after they arrive.
    """

    database: Database
    chain: Chain
    signer: Signer
    clock: Clock
    clock_check: ClockCheck
    randomness: Randomness
    identifiers: Identifiers
    lasting_randomness: Randomness
    lasting_identifiers: Identifiers
    settings: Settings
    tasks: Tasks
    wakeup: Wakeup
    vault: Vault
    metrics: Metrics = field(factory=Metrics)
    is_cluster: bool = False
