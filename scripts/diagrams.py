"""Draws the diagrams of the documentation, for `generate.py`.

Each diagram is data below: a sequence of messages, boxes with arrows, a timeline, or a table. The pictures
load nothing from the network.
"""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1b1f24 }
    .h { font-weight: 600 }
    .s { font-size: 12.5px; fill: #57606a }
    .l, .d { stroke: #3b5bdb; stroke-width: 1.6; fill: none }
    .d { stroke-dasharray: 5 4 }
    .v { stroke: #adb5bd; stroke-width: 1.2 }
    .c { fill: #fff3bf; stroke: #f08c00 }
    .p { fill: #edf2ff; stroke: #3b5bdb }
    .g { fill: #ebfbee; stroke: #2b8a3e }
    .r { fill: #fff5f5; stroke: #c92a2a }
    .w { fill: #ffffff }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .s { fill: #a8b3bf }
      .l, .d { stroke: #91a7ff }
      .v { stroke: #5c6570 }
      .c { fill: #3a2f12; stroke: #f0a93a }
      .p { fill: #1b2340; stroke: #7c93f5 }
      .g { fill: #12301c; stroke: #51b56b }
      .r { fill: #3a1618; stroke: #f07178 }
      .w { fill: #161b22 }
      .a { fill: #91a7ff }
    }
"""
ARROW = (
    '<marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#3b5bdb" class="a"/></marker>'
)


def svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    """Return a picture with a ground of its own; it is dark where the reader's system is."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-labelledby="title">\n'
        f'  <title id="title">{escape(title)}</title>\n  <style>{STYLE}  </style>\n'
        f'  <defs>{ARROW}</defs>\n  <rect width="{width}" height="{height}" rx="8" class="w"/>\n'
    )
    return head + "".join(f"  {part}\n" for part in parts) + "</svg>\n"


def words(x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def box(x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str = "p") -> str:  # noqa: PLR0917 - geometry
    """Return a box with a heading and further lines, centred."""
    top = y + height / 2 - (len(lines) - 1) * 9 + 5
    texts = "".join(
        words(x + width / 2, top + 18 * place, line, kind="s" if place else "h")
        for place, line in enumerate(lines)
    )
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>{texts}'


def arrow(x1: float, y1: float, x2: float, y2: float, *, is_reply: bool = False) -> str:
    """Return an arrow; a reply is dashed."""
    kind = "d" if is_reply else "l"
    return f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" class="{kind}" marker-end="url(#h)"/>'


Message = tuple[int, int, str]
"""Sender, receiver and text. If both are the same, it is a note, or a commit if the text starts so."""


def sequence(title: str, lanes: Sequence[str], messages: Sequence[Message], *, pitch: int = 240) -> str:
    """Return who sends what to whom, from the top down."""
    width, row = pitch * len(lanes), 40
    height = 92 + row * len(messages)
    at = [pitch // 2 + pitch * place for place in range(len(lanes))]
    parts = []
    for x, lane in zip(at, lanes, strict=True):
        parts.append(f'<path d="M{x} 52V{height - 14}" class="v"/>')
        parts.append(box(x - 80, 18, 160, 34, [lane]))
    for place, (sender, receiver, text) in enumerate(messages):
        y = 92 + row * place
        if sender == receiver:
            kind = "c" if text.startswith("commit") else "p"
            wide = max(216, 9 * len(text))
            parts.append(box(at[sender] - wide / 2, y - 17, wide, 30, [text], kind))
            continue
        is_reply = receiver < sender
        inset = 4 if at[sender] < at[receiver] else -4
        parts.append(arrow(at[sender] + inset, y, at[receiver] - inset, y, is_reply=is_reply))
        parts.append(words((at[sender] + at[receiver]) / 2, y - 6, text, kind="s"))
    return svg(title, width, height, parts)


def session() -> str:
    """A session: one funding, any number of charges, one settlement."""
    return sequence(
        "A session: fund the escrow once, add up charges in the database, settle once.",
        ("Your agent", "Service", "Database", "Chain"),
        (
            (0, 1, "open: cap 2.00, a key"),
            (1, 2, "policy, balance"),
            (2, 2, "commit: reserve the cap, sign"),
            (1, 3, "move 2.00 into the escrow"),
            (3, 1, "final"),
            (2, 2, "commit: open, event"),
            (0, 1, "charge 0.25, a key"),
            (2, 2, "commit: total 0.25 of 2.00"),
            (0, 1, "charge 0.50, a key"),
            (2, 2, "commit: total 0.75 of 2.00"),
            (0, 1, "close"),
            (2, 2, "commit: closing, sign"),
            (1, 3, "0.75 to the payee, 1.25 back"),
            (3, 1, "final"),
            (2, 2, "commit: settled, event"),
            (1, 0, "settled 0.75, returned 1.25"),
        ),
    )


def payment() -> str:
    """A payment for an API that responds 402."""
    return sequence(
        "A 402: the service signs, the seller submits, and the service believes only the chain.",
        ("Your agent", "Service", "Seller", "Chain"),
        (
            (0, 2, "GET /data"),
            (2, 0, "402 and a challenge: price, payee, network"),
            (0, 1, "POST /ext/v1/payments: challenge, a key"),
            (1, 1, "commit: policy, reserve, sign"),
            (1, 0, "a header with the signed payment"),
            (0, 2, "GET /data with the header"),
            (2, 3, "verify, submit"),
            (3, 2, "landed"),
            (2, 0, "200 and the data"),
            (3, 1, "the signature has landed"),
            (1, 1, "commit: settled, event"),
        ),
    )


def deliveries() -> str:
    """The attempts of a delivery over time."""
    steps = (("0 s", "attempt 1"), ("+30 s", "attempt 2"), ("+5 min", "attempt 3"), ("+30 min", "attempt 4"))
    ends = (*steps, ("+2 h", "attempt 5"))
    parts = [box(20, 26, 132, 46, ["the change", "and its event"], "c"), arrow(152, 49, 186, 49)]
    parts.append(words(88, 94, "one commit", kind="s"))
    for place, (delay, name) in enumerate(ends):
        x = 190 + 158 * place
        parts.append(box(x, 26, 118, 46, [name, delay]))
        if place < len(ends) - 1:
            parts.append(arrow(x + 118, 49, x + 154, 49))
        parts.append(arrow(x + 59, 72, x + 59, 128))
    parts.append(
        words(200, 18, "each delay counts from the failed attempt before it", kind="s", anchor="start")
    )
    parts.append(words(266, 104, "2xx", kind="s", anchor="start"))
    parts.append(box(190, 132, 750, 36, ["delivered"], "g"))
    parts.append(arrow(940, 49, 984, 49))
    parts.append(box(988, 26, 152, 46, ["undelivered", "after 2 h 35 min 30 s"], "r"))
    parts.append(arrow(1064, 72, 1064, 128))
    parts.append(box(972, 132, 184, 36, ["replay: a new delivery"]))
    return svg("Deliveries over time: five attempts, then undelivered until replayed.", 1160, 188, parts)


def accounts() -> str:
    """Ownership: operator, accounts, keys and policies."""
    parts = [
        box(20, 100, 190, 62, ["Operator", "operator key: everything"], "c"),
        box(330, 20, 230, 62, ["Account “Research bot”", "an address on chain, and USDC"]),
        box(330, 180, 230, 62, ["Account “Travel desk”", "an address on chain, and USDC"]),
        box(680, 20, 300, 62, ["Agent key", "pays from this account, reads it"], "g"),
        box(680, 100, 300, 62, ["Policy", "limits, payees, categories, approval"], "r"),
        box(680, 180, 300, 62, ["Separate agent key and policy", "no key reaches another account"], "g"),
        arrow(210, 118, 326, 60),
        arrow(210, 144, 326, 205),
        arrow(560, 44, 676, 44),
        arrow(560, 66, 676, 120),
        arrow(560, 211, 676, 211),
        words(
            500,
            276,
            "Every transfer, session and payment of an account is checked against its policy.",
            kind="s",
        ),
    ]
    return svg("Accounts, keys and policy: who may spend what.", 1000, 296, parts)


def approval() -> str:
    """The states of a transfer that waits for approval."""
    parts = [
        box(20, 74, 190, 52, ["pending_approval", "202, nothing reserved"], "c"),
        box(410, 16, 160, 44, ["submitted"]),
        box(740, 16, 160, 44, ["settled"], "g"),
        box(410, 148, 160, 44, ["rejected"], "r"),
        arrow(210, 88, 406, 40),
        words(250, 48, "approve, the policy allows", kind="s"),
        arrow(570, 38, 736, 38),
        words(653, 30, "final on chain", kind="s"),
        arrow(210, 112, 406, 166),
        words(210, 168, "reject; 24 hours pass; or", kind="s"),
        words(210, 186, "approve, the policy forbids", kind="s"),
        '<path d="M70 74C40 8 150 8 130 70" class="l" marker-end="url(#h)"/>',
        words(100, 14, "approve, but no funds", kind="s"),
    ]
    return svg("A transfer that waits for approval: submitted, or rejected for ever.", 920, 208, parts)


def deployment() -> str:
    """A deployment: clients, a proxy, servers, a database, a cluster and a receiver."""
    parts = [
        box(16, 20, 170, 52, ["Agents", "agent keys"], "g"),
        box(16, 108, 170, 52, ["You, the operator", "operator key, console"], "g"),
        box(250, 64, 150, 52, ["Reverse proxy", "TLS"]),
        box(464, 20, 190, 52, ["agentpay-server", "holds the encryption key"], "c"),
        box(464, 108, 190, 52, ["agentpay-server", "a second one, if you like"], "c"),
        box(730, 20, 200, 52, ["PostgreSQL", "books, keys, outbox"]),
        box(730, 108, 200, 52, ["Solana RPC", "two nodes; treasury of SOL"]),
        box(464, 200, 190, 44, ["Your webhook receiver"], "g"),
        arrow(186, 46, 246, 80),
        arrow(186, 134, 246, 100),
        arrow(400, 80, 460, 46),
        arrow(400, 100, 460, 134),
        arrow(654, 40, 726, 40),
        arrow(654, 122, 726, 54),
        arrow(654, 60, 726, 126),
        arrow(654, 140, 726, 140),
        arrow(559, 160, 559, 196),
        words(568, 184, "signed events", kind="s", anchor="start"),
    ]
    return svg("A deployment on PostgreSQL and a Solana cluster.", 950, 260, parts)


def overview() -> str:
    """What agentpay is: agent, service with its policy, chain; events back to the operator."""
    parts = [
        box(16, 30, 150, 62, ["Your agent", "asks to pay"], "g"),
        box(256, 16, 188, 90, ["Service", "checks the policy", "signs, settles once"], "p"),
        box(534, 30, 150, 62, ["Solana", "USDC moves"], "c"),
        arrow(166, 52, 252, 52),
        words(209, 44, "transfer", kind="s"),
        arrow(252, 76, 170, 76, is_reply=True),
        words(209, 92, "the outcome", kind="s"),
        arrow(444, 61, 530, 61),
        box(256, 156, 188, 44, ["You, the operator"], "g"),
        arrow(300, 156, 300, 110),
        words(290, 136, "limits, approvals", kind="s", anchor="end"),
        arrow(400, 106, 400, 152, is_reply=True),
        words(410, 136, "signed webhooks", kind="s", anchor="start"),
    ]
    return svg(
        "An agent asks to pay; the service checks, signs and settles; you set the limits.", 700, 216, parts
    )


def house() -> str:
    """The rooms of the project, each with one line; a room uses only rooms below or beside it."""
    floors: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
        (
            "g",
            (
                ("cli", "the commands"),
                ("testkit", "server in your process"),
                ("plugins", "402, cluster, PostgreSQL, …"),
            ),
        ),
        (
            "g",
            (
                ("http", "requests, health"),
                ("assembly", "connects all rooms"),
                ("sandbox", "test money, clock, faults"),
            ),
        ),
        (
            "p",
            (
                ("operators", "keys, audit, search"),
                ("webhooks", "deliveries"),
            ),
        ),
        ("p", (("accounts", "policies, deposits"), ("transfers", "pay once"), ("sessions", "many charges"))),
        ("c", (("engine", "decides, signs, settles"), ("ledger", "rows of money, keys and events"))),
        ("c", (("chain", "embedded, in your process"), ("database", "tables, SQLite"))),
        ("p", (("platform", "clock, settings, errors, logs"),)),
        ("g", (("agentpay", "the client, and the contract that both share"),)),
    )
    width, parts = 760, []
    for floor, (kind, rooms) in enumerate(floors):
        each = (width - 40 - 10 * (len(rooms) - 1)) / len(rooms)
        parts += [
            box(20 + (each + 10) * place, 16 + 66 * floor, each, 54, room, kind)
            for place, room in enumerate(rooms)
        ]
    bottom = 16 + 66 * len(floors)
    parts.append(words(width / 2, bottom + 10, "A room uses only rooms below it, or beside it.", kind="s"))
    return svg(
        "The rooms of the packages: each uses only rooms below it, or to its right.",
        width,
        bottom + 26,
        parts,
    )


DIAGRAMS: dict[str, Callable[[], str]] = {
    "accounts": accounts,
    "approval": approval,
    "architecture": house,
    "deliveries": deliveries,
    "deployment": deployment,
    "overview": overview,
    "payment": payment,
    "session": session,
}


def files() -> dict[Path, str]:
    """Return each picture."""
    return {IMAGES / f"{name}.svg": draw() for name, draw in DIAGRAMS.items()}
