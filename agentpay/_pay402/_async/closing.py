"""Presents the close of a session over 402 to its seller, which then settles it on chain.

What it responds decides nothing: the service reads the chain, and closes the session by force if the seller
does not.
"""

from typing import Any

from agentpay._calls.settings import logger
from agentpay._pay402.fetching import AsyncFetcher, PageRequest, target_of
from agentpay.contract.ext.sessions import Session

READ_SECONDS = 30.0
"""Longest wait for the seller's response, in seconds: it settles before it responds."""


async def present_close(
    session: Session,
    *,
    base_url: str,
    seller_client: Any = None,  # noqa: ANN401 - a client of either library
    url: str | None = None,
) -> None:
    """Present the header of a closing session; a failure is logged. Without a header, do nothing.

    Args:
        session: the session, as `POST /sessions/{session_id}/close` has returned it.
        base_url: the URL of the service. The seller may be private, or use http, only if the service does.
        seller_client: the HTTP client to use; by default one that follows no redirect and uses no proxy.
        url: the seller's URL, if it is known better than the session's, which has no query.
    """
    header, url = session.header, url or session.url or session.origin
    if header is None or url is None:
        return
    headers = {header.name: header.value}
    try:
        if seller_client is not None:
            response = await seller_client.get(url, headers=headers, auth=None, follow_redirects=False)
            status = response.status_code
        else:
            origin = session.origin or ""
            trusted = () if base_url.startswith("https:") else (origin,)
            target = target_of(url, trusted)
            page = await AsyncFetcher().fetch(
                PageRequest(target=target, headers=headers, read_seconds=READ_SECONDS)
            )
            status = page.status
    except Exception as error:  # noqa: BLE001 - of either HTTP library
        logger.warning(
            "the close of session %s was not presented: %s; the service closes it by force",
            session.session_id,
            error,
        )
        return
    logger.info("presented the close of session %s to %s: %d", session.session_id, session.origin, status)
