"""Reseal ciphertexts of earlier versions, which are bound only to their row, for their full place.

An earlier version authenticated the identifier of the row with a ciphertext, and neither table nor column:
the two secrets of a webhook could be swapped. The custody seed says which version has sealed a database. All
ciphertexts are sealed anew in the transaction that reseals the seed, so that a crash leaves either all of
them as they were, or none. Ciphertexts of that version are opened nowhere else.
"""

import logging
from typing import Final

from agentpay_server import identity_store as state
from agentpay_server.database.connection import Connection
from agentpay_server.logs import log
from agentpay_server.vault import Place, Vault, VaultError
from agentpay_server.webhooks import store as webhooks
from agentpay_server.webhooks.service import next_secret_place, secret_place

CUSTODY_SEED: Final = Place(table="server_state", column="value", row="custody_seed")
"""Where the seed of all keys is stored that the server signs with."""

logger: logging.Logger = logging.getLogger(__name__)


def opened_seed(connection: Connection, vault: Vault, sealed: bytes) -> str:
    """Return the custody seed; if an earlier version has sealed it, seal all that is stored anew.

    Args:
        connection: the unit's; the row of the seed is locked.
        vault: opens and seals.
        sealed: the stored seed.

    Raises:
        VaultError: it was sealed under another key.
    """
    try:
        return vault.open(sealed, CUSTODY_SEED)
    except VaultError:
        seed = vault.open_of_row(sealed, CUSTODY_SEED)
    for webhook_id, secret, next_secret in webhooks.sealed(connection):
        webhooks.reseal(
            connection,
            webhook_id,
            secret=_resealed(vault, secret, secret_place(webhook_id)),
            next_secret=(
                None if next_secret is None else _resealed(vault, next_secret, next_secret_place(webhook_id))
            ),
        )
    state.put(connection, CUSTODY_SEED.row, vault.seal(seed, CUSTODY_SEED))
    log(logger, logging.INFO, "secrets.resealed")
    return seed


def _resealed(vault: Vault, sealed: bytes, place: Place) -> bytes:
    try:
        return vault.seal(vault.open_of_row(sealed, place), place)
    except VaultError:
        # It does not open today, and will not open afterwards: no reason to refuse the start.
        log(logger, logging.WARNING, "secret.damaged", webhook_id=place.row, column=place.column)
        return sealed
