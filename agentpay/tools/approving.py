"""Which calls need a person's approval in the host: the same rule for every framework.

Applies before the tool runs, in addition to the service's own approvals, which no host can skip.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from agentpay.tools.specs import TOOLS

NeedsApproval: TypeAlias = bool | Callable[[str, Mapping[str, Any]], bool]
"""Whether a person must approve a call: always, never, or by the tool's name and arguments.

It applies only to tools that can spend.
"""


def is_needed(needs_approval: NeedsApproval, name: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a person must approve a call. A rule that fails means yes."""
    if not TOOLS[name].moves_money:
        return False
    if isinstance(needs_approval, bool):
        return needs_approval
    try:
        return bool(needs_approval(name, arguments))
    except Exception:  # noqa: BLE001 - a model may have sent arguments that the rule cannot read
        return True
