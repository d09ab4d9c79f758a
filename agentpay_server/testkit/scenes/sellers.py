"""The local sellers of a scene: paywalls with a port each."""

from agentpay_server.testkit.embedded.server import AgentPayServer
from agentpay_server.testkit.paywall.homes import Host
from agentpay_server.testkit.paywall.paywall import Paywall
from agentpay_server.testkit.paywall.products import Mode
from agentpay_server.testkit.scenes.document import SceneError, SceneSeller, SellerProtocol


def opened(host: AgentPayServer | Host, seller: SceneSeller, pay_to: str | None) -> Paywall:
    """Return the paywall of a local seller, which listens on its port until the server stops.

    Args:
        host: the server, on whose chain it settles.
        seller: the seller, with a price.
        pay_to: address of the owner who is paid; None for its own.

    Raises:
        SceneError: its port is in use.
    """
    assert seller.price is not None  # noqa: S101 - the document was checked
    paywall = Paywall(host, pay_to=pay_to, name=seller.name or "")
    exact = [each.value for each in seller.protocols if each.modes is Mode]
    if exact:
        paywall.sell(seller.path, seller.price, protocols=exact, category=seller.category, mode=seller.mode)
    if SellerProtocol.X402_UPTO in seller.protocols:
        paywall.sell_upto(seller.path, seller.price, mode=seller.mode)
    if SellerProtocol.MPP_SESSION in seller.protocols:
        paywall.sell_by_session(seller.path, seller.price, category=seller.category, mode=seller.mode)
    try:
        paywall.listen(port=seller.port)
    except OSError as error:
        paywall.close()
        raise SceneError(f"sellers: {seller.name}: {error}") from None
    return paywall
