"""Lists: pages that lead to one another, and an iteration that ends whatever the service says."""

import contextlib
import copy
import pickle

import httpx
import pytest
from sdk_world import ACCOUNT, KEY, TRANSACTION, URL, Script, answer, page

from agentpay import AsyncAgentPay, errors
from agentpay.resources import AsyncPage, Page


def accounts(*names):
    return [{**ACCOUNT, "name": name} for name in names]


def three_pages():
    return (
        answer(200, page(accounts("a", "b"), "c1", has_more=True)),
        answer(200, page([], "c2", has_more=True)),
        answer(200, page(accounts("c"))),
    )


def test_iterating_reads_all_pages(caller):
    script = caller.script(*three_pages())
    assert [account.name for account in caller.items(lambda c: c.accounts.list())] == ["a", "b", "c"]
    assert [request.url.query for request in script.requests] == [b"", b"cursor=c1", b"cursor=c2"]


def test_every_page_keeps_the_filters(caller):
    script = caller.script(*three_pages())
    caller.items(lambda c: c.accounts.list(limit=2, status="active", cursor="c0"))
    assert [request.url.query.decode() for request in script.requests] == [
        f"limit=2&cursor=c{n}&status=active" for n in range(3)
    ]


def test_pages_can_be_read_one_by_one(caller):
    caller.script(*three_pages())
    first = caller(lambda c: c.accounts.list())
    assert isinstance(first, AsyncPage if caller.is_async else Page)
    assert ([account.name for account in first.data], first.has_more, first.cursor) == (
        ["a", "b"],
        True,
        "c1",
    )
    second = caller(lambda _: first.next_page())
    third = caller(lambda _: second.next_page())
    assert (len(third.data), third.has_more) == (1, False)
    assert "of 1, has_more=False" in repr(third)
    with pytest.raises(RuntimeError, match="last page"):
        caller(lambda _: third.next_page())


def test_a_page_can_be_iterated_again_from_its_position(caller):
    caller.script(*three_pages(), *three_pages()[1:])
    first = caller(lambda c: c.accounts.list())
    for _ in range(2):
        assert [account.name for account in caller.items(lambda _: first)] == ["a", "b", "c"]


def test_pages_are_fetched_lazily(caller):
    script = caller.script(*three_pages())
    caller(lambda c: c.accounts.list())
    assert len(script.requests) == 1


def test_an_account_history_is_paged_in_the_same_way(caller):
    script = caller.script(
        answer(200, page([TRANSACTION], "c1", has_more=True)), answer(200, page([TRANSACTION]))
    )
    assert len(caller.items(lambda c: c.accounts.transactions("acct_a", status="settled"))) == 2
    assert script.requests[1].url.query == b"cursor=c1&status=settled"


@pytest.mark.parametrize("cursor", ["", "c1"])
def test_a_repeated_cursor_raises_a_decoding_error(caller, cursor):
    script = caller.script(
        answer(200, page(accounts("a"), "c1", has_more=True)),
        answer(200, page(accounts("b"), cursor, has_more=True)),
    )
    with pytest.raises(errors.ResponseValidationError, match="leads back to a page that was read"):
        caller.items(lambda c: c.accounts.list())
    assert len(script.requests) == 2


CYCLES = {
    "two": ["c1", "c2"],
    "three": ["c1", "c2", "c3"],
    "after a while": ["c1", "c2", "c3", "c4", "c3"],
    "back to the start": ["c1", "c2", "c0"],
}


@pytest.mark.parametrize("cursors", CYCLES.values(), ids=CYCLES)
def test_circular_cursors_raise_a_decoding_error(caller, cursors):
    """The list would never end: each page says that there is another one."""
    script = caller.script(
        *(answer(200, page(accounts(str(n)), cursors[n % len(cursors)], has_more=True)) for n in range(10))
    )
    with pytest.raises(errors.ResponseValidationError, match="leads back to a page that was read"):
        caller.items(lambda c: c.accounts.list(cursor="c0"))
    sent = [dict(request.url.params)["cursor"] for request in script.requests]
    assert sent == ["c0", *dict.fromkeys(cursor for cursor in cursors if cursor != "c0")]


def test_circular_cursors_raise_with_next_page_too(caller):
    caller.script(*(answer(200, page(accounts("a"), f"c{n % 2 + 1}", has_more=True)) for n in range(10)))
    seen = [caller(lambda c: c.accounts.list())]

    def turn_all():
        while seen[-1].has_more:
            seen.append(caller(lambda _: seen[-1].next_page()))

    with pytest.raises(errors.ResponseValidationError, match="leads back"):
        turn_all()
    assert len(seen) == 3


def test_an_error_on_a_later_page_is_raised_during_iteration(caller):
    caller.script(answer(200, page(accounts("a"), "c1", has_more=True)), answer(404))
    with pytest.raises(errors.NotFoundError):
        caller.items(lambda c: c.accounts.list())


@pytest.mark.anyio
async def test_an_async_list_is_awaited_or_iterated_over():
    script = Script(*three_pages(), *three_pages())
    async with AsyncAgentPay(api_key=KEY, base_url=URL, transport=script) as client:
        listing = client.accounts.list()
        assert not script.requests, "nothing is sent before it is awaited"
        first = await listing
        assert [account.name async for account in first] == ["a", "b", "c"]
        assert [account.name async for account in client.accounts.list()] == ["a", "b", "c"]


def test_each_page_is_retried_separately(caller):
    pages = three_pages()
    script = caller.script(pages[0], httpx.ReadTimeout(""), pages[1], answer(503), pages[2])
    assert len(caller.items(lambda c: c.accounts.list())) == 3
    assert len(script.requests) == 5


def test_iter_pages_yields_all_pages(caller):
    caller.script(*three_pages())

    async def gather(listing):
        return [page async for page in listing.iter_pages()]

    listing = caller.client.accounts.list()
    pages = caller.run(gather, listing) if caller.is_async else list(listing.iter_pages())
    assert [[account.name for account in page.data] for page in pages] == [["a", "b"], [], ["c"]]


def test_iter_pages_fetches_lazily(caller):
    script = caller.script(*three_pages())
    first = caller(lambda c: c.accounts.list())

    async def turn():
        async with contextlib.aclosing(first.iter_pages()) as pages:
            assert await anext(pages) is first
            assert len(script.requests) == 1
            await anext(pages)

    if caller.is_async:
        caller.run(turn)
    else:
        pages = first.iter_pages()
        assert next(pages) is first
        assert len(script.requests) == 1
        next(pages)
    assert len(script.requests) == 2


@pytest.mark.parametrize(
    ("body", "truth"),
    [
        (page([]), False),
        (page(accounts("a")), True),
        (page([], "c1", has_more=True), True),
    ],
)
def test_a_page_is_truthy_if_the_list_is_not_empty(caller, body, truth):
    caller.script(answer(200, body))
    assert bool(caller(lambda c: c.accounts.list())) is truth


def test_a_page_has_no_length(caller):
    caller.script(answer(200, page(accounts("a"), "c1", has_more=True)))
    with pytest.raises(TypeError, match="has no len"):
        len(caller(lambda c: c.accounts.list()))


def test_an_async_list_that_is_not_awaited_has_no_truth_value():
    client = AsyncAgentPay(api_key=KEY, base_url=URL)
    with pytest.raises(TypeError, match="nothing was fetched yet: write `if await client"):
        bool(client.accounts.list())


AGAIN = [copy.copy, copy.deepcopy, lambda page: pickle.loads(pickle.dumps(page))]


@pytest.mark.parametrize("again", AGAIN)
def test_a_pickled_page_keeps_its_data_and_explains_how_to_continue(caller, again):
    script = caller.script(*three_pages())
    first = caller(lambda c: c.accounts.list())
    pickled = again(first)
    assert (pickled.data, pickled.cursor, pickled.has_more) == (first.data, "c1", True)
    with pytest.raises(
        RuntimeError, match=r"has no client: call the list method again with cursor=page\.cursor"
    ):
        caller(lambda _: pickled.next_page())
    assert KEY.encode() not in pickle.dumps(first)
    assert caller(lambda c: c.accounts.list(cursor=pickled.cursor)).cursor == "c2"
    assert script.requests[1].url.query == b"cursor=c1"
