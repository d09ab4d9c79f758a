"""Signing in to the console: links with one-use codes, and the keys of browsers (CO18 to CO20).

Codes and keys come from the operating system's randomness, never from a seed: links are opened on ports. They
expire on the server's clock. A browser that advances this clock keeps its key for the time that it had left;
a restored snapshot does the same (`keys.py`).
"""

import secrets
from typing import Final

from agentpay.contract import identifiers
from agentpay.contract.errors import ErrorCode
from agentpay.contract.ext.operator_keys import OperatorKeyKind
from agentpay.contract.ext.sign_in import CREATE_SIGN_IN_CODE, SIGN_IN, ConsoleKey, SignIn, SignInCode
from agentpay.contract.fields import format_timestamp
from agentpay_server.database.connection import Connection
from agentpay_server.ledger import audit
from agentpay_server.ledger.context import Context
from agentpay_server.operators import store
from agentpay_server.operators.store import insert_key
from agentpay_server.platform.clock import HOUR_US, SECOND_US, from_us
from agentpay_server.platform.errors import Problem
from agentpay_server.platform.principals import Principal, digest_of_code, new_code, new_key

CODE_US: Final = 600 * SECOND_US

KEY_US: Final = 12 * HOUR_US

_NAME: Final = "Console"
_BYTES: Final = 32


class SignIns:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def create_code(self, actor: audit.Actor) -> SignInCode:
        return await self._context.database.run(self._insert_code, actor)

    async def sign_in(self, principal: Principal, request: SignIn) -> ConsoleKey:
        """Exchange a code for a key, once; `unauthorized` if it is malformed, unknown, expired or used."""
        digest = digest_of_code(request.code)
        key, database = None, self._context.database
        # Anybody may send codes, as many as they like: unknown ones write nothing.
        if digest is not None and await database.read(store.CODES.get, digest) is not None:
            key = await database.run(self._exchange, digest, principal.request_id)
        if key is None:
            raise Problem(
                ErrorCode.UNAUTHORIZED,
                "This code is invalid, has expired or was used before. Get a new link: agentpay-server "
                "console-link.",
                says_what_to_do=True,
            )
        return key

    async def postpone(self, principal: Principal, by_us: int) -> None:
        """Postpone the expiry of a request's console key before the clock advances by `by_us`."""
        if principal.is_console:
            await self._context.database.run(self._postpone, principal, by_us)

    # --- Units of work

    def _insert_code(self, connection: Connection, actor: audit.Actor) -> SignInCode:
        code, now_us = new_code(secrets.token_bytes(_BYTES)), self._context.clock.now_us()
        digest = digest_of_code(code)
        assert digest is not None  # noqa: S101 - the code is new
        expires_us = now_us + CODE_US
        store.insert_code(connection, digest, actor.operator_id, expires_us, now_us)
        audit.record(
            connection,
            actor,
            action=CREATE_SIGN_IN_CODE.name,
            subject=actor.operator_id,
            now_us=now_us,
            after={"expires_at": format_timestamp(from_us(expires_us))},
        )
        return SignInCode(code=code, expires_at=from_us(expires_us))

    def _exchange(self, connection: Connection, digest: str, request_id: str | None) -> ConsoleKey | None:
        now_us = self._context.clock.now_us()
        operator_id = store.take_code(connection, digest, now_us)
        if operator_id is None:
            return None
        key = new_key(OperatorKeyKind.CONSOLE, secrets.token_bytes(_BYTES))
        key_id, expires_us = self._context.lasting_identifiers.new(identifiers.KEY), now_us + KEY_US
        insert_key(
            connection,
            key,
            key_id=key_id,
            operator_id=operator_id,
            name=_NAME,
            kind=OperatorKeyKind.CONSOLE,
            now_us=now_us,
            expires_us=expires_us,
        )
        audit.record(
            connection,
            Principal(operator_id=operator_id, key_id=key_id, request_id=request_id),
            action=SIGN_IN.name,
            subject=key_id,
            now_us=now_us,
            after={"expires_at": format_timestamp(from_us(expires_us))},
        )
        return ConsoleKey(key_id=key_id, key=key, expires_at=from_us(expires_us))

    def _postpone(self, connection: Connection, principal: Principal, by_us: int) -> None:
        key = store.live_operator_key(connection, principal.operator_id, principal.key_id)
        if key is not None and key.expires_us is not None:
            store.KEYS.changed(connection, key, expires_us=key.expires_us + by_us)
