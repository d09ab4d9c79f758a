"""`Rows`: what a change returns, whom it leaves alone, and pages with the filters that are given."""

import pytest
import stores
from attrs import evolve
from sqlalchemy import bindparam, literal_column

from agentpay_server.database.connection import ConstraintError
from agentpay_server.database.rows import Rows, StaleRowError
from agentpay_server.database.sqlite import MemoryDatabase
from agentpay_server.database.tables import KeyRecord, metadata
from agentpay_server.plugins.postgres.database import PostgresDatabase

pytestmark = pytest.mark.anyio

KEYS = Rows(KeyRecord, "key_id")
IS_AGENT = KEYS.c.kind == literal_column("'agent'")
IS_BEFORE = KEYS.c.created_us < bindparam("limit_us")
PAGES = KEYS.pages(
    "operator_id",
    IS_AGENT,
    equal=["name"],
    filters={"until_us": (KEYS.c.created_us < bindparam("until_us"),)},
)
FEW = KEYS.pages("operator_id", equal=["name"], few="name")

KEY = KeyRecord(
    seq=0,
    key_id="key_1",
    operator_id="op",
    account_id=None,
    name="one",
    digest="d1",
    created_us=5,
    revoked_us=None,
    kind="agent",
    expires_us=None,
)


@pytest.fixture(params=["memory", "postgres"])
async def database(request):
    if request.param == "memory":
        database = MemoryDatabase()
    else:
        database = PostgresDatabase(await stores.bare_url())
        await database.create_missing(metadata)
    yield database
    await database.close()


async def stored(database, *keys):
    await database.run(KEYS.insert, *keys)
    return [await database.read(KEYS.existing, key.key_id) for key in keys]


async def test_an_inserted_record_is_read_with_its_sequence_number(database):
    first, second = await stored(database, KEY, evolve(KEY, key_id="key_2", digest="d2"))

    assert evolve(first, seq=0) == KEY
    assert (first.seq, second.seq) == (1, 2)
    assert await database.read(KEYS.get, "key_3") is None
    assert await database.read(KEYS.get, "key_1", IS_AGENT) == first
    assert await database.run(KEYS.get, "key_1", lock=True) == first
    with pytest.raises(LookupError, match="key_3 is gone"):
        await database.read(KEYS.existing, "key_3")


async def test_rows_inserted_together_get_their_sequence_numbers_in_order(database):
    keys = [evolve(KEY, key_id=f"key_{number}", digest=f"d{number}") for number in range(20)]

    def unit(connection):
        KEYS.insert(connection, *keys[:15])
        for key in keys[15:]:
            KEYS.insert(connection, key)
        return [KEYS.existing(connection, key.key_id).seq for key in keys]

    assert await database.run(unit) == list(range(1, 21))


async def test_a_unit_can_act_on_a_conflict_of_an_insert_that_is_sent_now(database):
    await stored(database, KEY)

    def unit(connection):
        try:
            KEYS.insert_now(connection, evolve(KEY, digest="d2"))
        except ConstraintError:
            raise LookupError("taken") from None

    with pytest.raises(LookupError, match="taken"):
        await database.run(unit)


async def test_a_change_returns_the_row_as_it_is_now(database):
    (before,) = await stored(database, KEY)

    changed = await database.run(KEYS.change, before, IS_AGENT, name=None, add={"created_us": 2})

    assert changed == evolve(before, name=None, created_us=7)
    assert await database.read(KEYS.existing, "key_1") == changed


async def test_a_change_returns_what_others_have_changed_meanwhile(database):
    (before,) = await stored(database, KEY)
    await database.run(KEYS.change, "key_1", name="theirs")

    changed = await database.run(KEYS.change, before, revoked_us=9)

    assert (changed.name, changed.revoked_us) == ("theirs", 9)


@pytest.mark.parametrize(
    ("conditions", "given"),
    [((KEYS.c.kind == literal_column("'operator'"),), {}), ((IS_AGENT, IS_BEFORE), {"limit_us": 5})],
)
async def test_a_row_in_another_state_is_left_alone(database, conditions, given):
    (before,) = await stored(database, KEY)

    assert await database.run(KEYS.change, before, *conditions, given=given, name="two") is None
    with pytest.raises(StaleRowError, match="api_keys key_1"):
        await database.run(KEYS.changed, before, *conditions, given=given, name="two")
    assert await database.read(KEYS.existing, "key_1") == before


@pytest.mark.parametrize("names", [{"nmae": "two"}, {"add": {"createdus": 1}}, {"given": {"other": 1}}])
async def test_an_unknown_name_is_an_error(database, names):
    await stored(database, KEY)

    with pytest.raises(KeyError):
        await database.run(KEYS.change, "key_1", **{"revoked_us": 1, **names})


async def test_a_page_has_the_filters_that_are_given(database):
    records = await stored(
        database,
        KEY,
        evolve(KEY, key_id="key_2", digest="d2", name="two"),
        evolve(KEY, key_id="key_3", digest="d3", kind="operator"),
        evolve(KEY, key_id="key_4", digest="d4", operator_id="other"),
        evolve(KEY, key_id="key_5", digest="d5", created_us=0),
    )

    async def page(pages, **filters):
        found = await database.read(pages, "op", before=100, count=10, **filters)
        return [records.index(each) for each in found]

    assert await page(PAGES) == [4, 1, 0]
    assert await page(PAGES, name=None) == [4, 1, 0]
    assert await page(PAGES, name="one") == [4, 0]
    assert await page(PAGES, name="one", until_us=1) == [4]
    assert await database.read(PAGES, "op", before=records[4].seq, count=1) == [records[1]]
    assert await page(FEW, name="one") == [4, 2, 0]
    assert len(PAGES.statements()) == 4


async def test_a_removed_row_is_returned_once(database):
    (key,) = await stored(database, KEY)

    assert await database.run(KEYS.remove, "key_1", IS_BEFORE, given={"limit_us": 5}) is None
    assert await database.run(KEYS.remove, "key_1", IS_BEFORE, given={"limit_us": 6}) == key
    assert await database.run(KEYS.remove, "key_1") is None
    assert await database.read(KEYS.get, "key_1") is None
