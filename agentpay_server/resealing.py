"""Reseals the ciphertexts of earlier versions.

An earlier version authenticated a ciphertext with the identifier of its row only, so the two secrets of a
webhook could be swapped; now table and column are authenticated, too. The custody seed shows which version
sealed a database. All ciphertexts are resealed in the transaction that reseals the seed, so a crash leaves
all of them unchanged. Only this module opens ciphertexts of that version.
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

logger: logging.Logger = logging.getLogger(__name__)


def opened_seed(connection: Connection, vault: Vault, sealed: bytes) -> str:
    """If an earlier version sealed the seed, reseal all ciphertexts.

    The seed's row is locked in this unit of work. Raises `VaultError` if it was sealed with another key.
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
        # It did not open before either, so it is no reason to refuse the start.
        log(logger, logging.WARNING, "secret.damaged", webhook_id=place.row, column=place.column)
        return sealed
