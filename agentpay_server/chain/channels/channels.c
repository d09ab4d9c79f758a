/* The payment-channel program of MPP sessions and x402 `upto`, for test chains.
 *
 * Written from a description of the deployed program: the same accounts, instructions, states, events and errors,
 * so that a transaction for one is valid for the other. It has not been compared with the deployed one.
 *
 * `scripts/channel_program.py` builds it. The runtime undoes a transaction if one of its instructions fails. Error
 * codes below 2^32 are those of `codecs.ProgramError`.
 *
 * The compiler allows 512 bytes of stack, so everything large is in `H`, on the heap. Memory may be read and
 * written at any alignment, except for what is passed to the runtime. There is no data section.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long i64;

#define INLINE static inline __attribute__((always_inline))
#define PACKED __attribute__((packed, aligned(1)))

/* Errors of the runtime. */
#define INVALID_INSTRUCTION_DATA (3UL << 32)
#define INVALID_ACCOUNT_DATA (4UL << 32)
#define INCORRECT_PROGRAM_ID (7UL << 32)
#define NOT_ENOUGH_ACCOUNT_KEYS (11UL << 32)
#define UNSUPPORTED_SYSVAR (17UL << 32)
#define INVALID_ACCOUNT_OWNER (23UL << 32)

enum { OPEN, SEALED, CLOSING, DISTRIBUTED };
enum { RECIPIENT, PAYEE, PAYER };               /* Beneficiaries. */
enum { HEALTHY, MALFORMED, STATE, OWNER };      /* Reasons of a redirection; 0 is an extension, which cannot occur. */
enum { MAX_ACCOUNTS = 48, MAX_SHARES = 32, CHANNEL_BYTES = 256, TOKEN_BYTES = 165, MINT_BYTES = 82, WINDOW = 1500, WHOLE = 10000 };

typedef struct { u64 word[4]; } Key;

typedef struct {
    Key *key;
    u64 *lamports;
    u64 length;
    u8 *data;
    Key *owner;
    u64 rent_epoch;
    u8 is_signer, is_writable, is_executable;
} Account; /* The form in which invocations take accounts. */

typedef struct { Key *key; u8 is_writable, is_signer; } Meta;
typedef struct { Key *program; Meta *accounts; u64 count; const void *data; u64 length; } Instruction;
typedef struct { const void *at; u64 length; } Slice;
typedef struct { u64 slot; i64 epoch_start; u64 epoch, leader_epoch; i64 now; } Clock;

typedef struct __attribute__((packed, aligned(4))) {
    u8 discriminator, version, bump, status;
    u64 salt, deposit, settled, paid;
    i64 closing_since, withdrawn_at;
    u32 grace;
    Key distribution, payer, payee, signer, mint, rent_payer;
    u64 open_slot;
} Channel;

typedef struct PACKED { Key recipient; u16 bps; } Share;
typedef struct PACKED { u32 count; Share share[]; } Shares;
typedef struct PACKED { u8 step; u64 salt, deposit; u32 grace; u64 open_slot; Shares shares; } Opening;
typedef struct PACKED { u8 magic[2]; Key channel; u64 cumulative; i64 expires_at; } Voucher;
typedef struct PACKED { u64 header[2]; Key signer; u8 signature[64]; Voucher voucher; } SignedVoucher;
typedef struct PACKED { Key mint, owner; u64 amount; u8 skipped[36], state; } Token;
typedef struct PACKED { u64 tag, kind; Key channel; u64 open_slot; } OpenedEvent;
typedef struct PACKED { u64 tag, kind; Key channel, owner; u64 amount; u8 beneficiary, reason; } RedirectedEvent;

typedef struct {
    Account account[MAX_ACCOUNTS];
    u64 count; /* Of all accounts, including those beyond `MAX_ACCOUNTS`. */
    u8 *data;
    u64 length;
    Key *program;
    Clock clock;
    Channel channel; /* The copy that an instruction works on. */
    Key recipient[MAX_SHARES];
    u64 bps[MAX_SHARES];
    u64 shares;
    u64 lost; /* What beneficiaries could not receive. */
    Meta meta[6];
    Account passed[6];
    Instruction instruction;
    Slice seed[8], signer;
    u8 bump[8];
    u8 text[16];
    u8 message[128];
    Key found, token_program, ata_program, treasury;
} Heap;

#define H ((Heap *)0x300000000UL)

u64 sol_sha256(const Slice *, u64, void *);
u64 sol_get_clock_sysvar(void *);
u64 sol_try_find_program_address(const Slice *, u64, const void *, void *, void *);
u64 sol_curve_validate_point(u64, const void *, void *);
u64 sol_invoke_signed_c(const Instruction *, const Account *, u64, const Slice *, u64);

#define REQUIRE(condition, error) do { if (!(condition)) return (error); } while (0)
#define TRY(call) do { u64 failed = (call); if (failed) return failed; } while (0)

/* Keys, as little-endian words. */
#define SYSTEM_PROGRAM 0, 0, 0, 0
#define TOKEN_PROGRAM 0x93a165d7e1f6dd06, 0xac79ebce46e1cbd9, 0x91375b5fed85b41c, 0xa900ff7e85f58c3a
#define ATA_PROGRAM 0xf189244e8f25978c, 0x830d8e1429103dbb, 0x8410ffda99135a0b, 0x59f8e9dbd87b8e04
#define ED25519_PROGRAM 0xbefb937cd6467d03, 0xff408d838f42f912, 0x648af42749747005, 0x000000804470cafc
#define INSTRUCTIONS_SYSVAR 0x66d17b1817d5a706, 0xc0c2fd5504d4da35, 0xa57556218fc624c1, 0x000000085fcbbadb
#define RENT_SYSVAR 0x515c2c1917d5a706, 0x7ff14a3d4cc98c21, 0x44fda19b08eeda58, 0x000000008ad9dbe3
#define EVENT_AUTHORITY 0x2b2b1e6b7b0d545a, 0x60f0a3c9195217b5, 0x0c174f8cca419210, 0xd0f9eaee482dcac1
#define EVENT_BUMP 249
#define MAINNET_TREASURY 0xbe21b737d3d941b0, 0x09683b9cb64e8957, 0xfc99236a2b0e3aa5, 0xaa89ac8cda7e5b7d
#define DEVNET_TREASURY 0x597ecd3e4c4a4b3b, 0xecbbdee567ae34d6, 0xa613f04d206fd00a, 0x058db9576a37a395

INLINE int is(const Key *key, u64 a, u64 b, u64 c, u64 d) {
    return key->word[0] == a && key->word[1] == b && key->word[2] == c && key->word[3] == d;
}

INLINE void set(Key *key, u64 a, u64 b, u64 c, u64 d) {
    key->word[0] = a;
    key->word[1] = b;
    key->word[2] = c;
    key->word[3] = d;
}

INLINE int same(const Key *one, const Key *other) {
    return is(one, other->word[0], other->word[1], other->word[2], other->word[3]);
}

INLINE void copy_words(u64 *to, const u64 *from, u64 count) {
#pragma nounroll
    for (u64 at = 0; at < count; at++) to[at] = from[at];
}

/* Also for the keys in packed structures, which the compiler would copy byte by byte. */
INLINE void copy_key(void *to, const void *from) {
    const Key *key = from;
    set(to, key->word[0], key->word[1], key->word[2], key->word[3]);
}

INLINE const Key *key_of(u64 index) { return H->account[index].key; }

/* --- Input */

static void parse(u8 *at) {
    u64 count = H->count = *(u64 *)at;
    at += 8;
    for (u64 index = 0; index < count; index++) {
        if (*at != 0xff) { /* The account at an earlier index again. */
            if (index < MAX_ACCOUNTS) H->account[index] = H->account[*at];
            at += 8;
            continue;
        }
        u64 length = *(u64 *)(at + 80);
        if (index < MAX_ACCOUNTS) {
            Account *account = &H->account[index];
            account->is_signer = at[1];
            account->is_writable = at[2];
            account->is_executable = at[3];
            account->key = (Key *)(at + 8);
            account->owner = (Key *)(at + 40);
            account->lamports = (u64 *)(at + 72);
            account->length = length;
            account->data = at + 88;
            account->rent_epoch = 0;
        }
        at += 88 + length + 10240;
        at = (u8 *)(((u64)at + 7) & ~7UL) + 8;
    }
    H->length = *(u64 *)at;
    H->data = at + 8;
    H->program = (Key *)(H->data + H->length);
}

/* Sets `channel`. */
static u64 read_channel(u64 index) {
    Account *account = &H->account[index];
    REQUIRE(same(account->owner, H->program), INVALID_ACCOUNT_OWNER);
    REQUIRE(account->length == CHANNEL_BYTES, INVALID_ACCOUNT_DATA);
    copy_words((u64 *)&H->channel, (u64 *)account->data, CHANNEL_BYTES / 8);
    REQUIRE(H->channel.discriminator == 1, 3);
    REQUIRE(H->channel.version == 1, 4);
    return 0;
}

INLINE void write_channel(u64 index) {
    copy_words((u64 *)H->account[index].data, (u64 *)&H->channel, CHANNEL_BYTES / 8);
}

/* Sets `shares`, `recipient` and `bps`. */
static u64 read_shares(const Shares *shares, u64 length) {
    REQUIRE(length >= sizeof(Shares), INVALID_INSTRUCTION_DATA);
    u64 count = H->shares = shares->count;
    REQUIRE(count <= MAX_SHARES, 260);
    REQUIRE(length == sizeof(Shares) + count * sizeof(Share), INVALID_INSTRUCTION_DATA);
    for (u64 index = 0; index < count; index++) {
        copy_key(&H->recipient[index], &shares->share[index].recipient);
        H->bps[index] = shares->share[index].bps;
    }
    return 0;
}

static u64 check_shares(const Key *channel) {
    u64 sum = 0;
    for (u64 index = 0; index < H->shares; index++) {
        sum += H->bps[index];
        REQUIRE(H->bps[index] && sum <= WHOLE, 261);
        REQUIRE(!same(&H->recipient[index], channel), 261);
        for (u64 other = 0; other < index; other++)
            REQUIRE(!same(&H->recipient[index], &H->recipient[other]), 263);
    }
    return 0;
}

static void hash_shares(const Shares *shares, void *hash) {
    H->seed[0].at = shares;
    H->seed[0].length = sizeof(Shares) + H->shares * sizeof(Share);
    sol_sha256(H->seed, 1, hash);
}

/* --- Token accounts, all of the channel's mint */

INLINE Token *token_at(u64 index) { return (Token *)H->account[index].data; }

/* Why a token account is not `owner`'s, or cannot receive. */
static u64 fault_of(u64 index, const Key *owner) {
    const Account *account = &H->account[index];
    const Token *token = token_at(index);
    if (!is(account->owner, TOKEN_PROGRAM) || account->length != TOKEN_BYTES) return MALFORMED;
    if (token->state == 0 || token->state > 2 || !same(&token->mint, &H->channel.mint)) return MALFORMED;
    if (!same(&token->owner, owner)) return OWNER;
    return token->state == 1 ? HEALTHY : STATE;
}

INLINE void seed(u64 index, const void *at, u64 length) {
    H->seed[index].at = at;
    H->seed[index].length = length;
}

static int is_token_account_of(u64 index, const Key *owner) {
    set(&H->token_program, TOKEN_PROGRAM);
    set(&H->ata_program, ATA_PROGRAM);
    seed(0, owner, 32);
    seed(1, &H->token_program, 32);
    seed(2, &H->channel.mint, 32);
    sol_try_find_program_address(H->seed, 3, &H->ata_program, &H->found, H->bump);
    return same(key_of(index), &H->found);
}

static u64 check_payers_account(u64 index) {
    REQUIRE(is_token_account_of(index, &H->channel.payer), 57);
    u64 fault = fault_of(index, &H->channel.payer);
    REQUIRE(fault == HEALTHY || fault == STATE, 58);
    return 0;
}

static u64 check_escrow(u64 index, const Key *channel) {
    REQUIRE(is_token_account_of(index, channel), 50);
    u64 fault = fault_of(index, channel);
    REQUIRE(fault != MALFORMED, 51);
    REQUIRE(fault == HEALTHY, 50);
    return 0;
}

/* --- Invocations: pass accounts, write `message`, invoke */

static __attribute__((noinline)) void pass(u64 place, u64 index, u8 is_writable, u8 is_signer) {
    Account *account = &H->account[index];
    H->meta[place].key = account->key;
    H->meta[place].is_writable = is_writable;
    H->meta[place].is_signer = is_signer;
    H->passed[place] = *account;
    H->passed[place].length = ((u64 *)account->data)[-1]; /* An earlier invocation may have changed it. */
}

static void set_channel_seeds(void) {
    *(u64 *)H->text = 0x6c656e6e616863; /* "channel" */
    seed(0, H->text, 7);
    seed(1, &H->channel.payer, 32);
    seed(2, &H->channel.payee, 32);
    seed(3, &H->channel.mint, 32);
    seed(4, &H->channel.signer, 32);
    seed(5, &H->channel.salt, 8);
    seed(6, &H->channel.open_slot, 8);
    seed(7, &H->channel.bump, 1);
}

static u64 invoke(u64 program, u64 count, u64 length, u64 seeds) {
    H->instruction.program = H->account[program].key;
    H->instruction.accounts = H->meta;
    H->instruction.count = count;
    H->instruction.data = H->message;
    H->instruction.length = length;
    H->signer.at = H->seed;
    H->signer.length = seeds;
    return sol_invoke_signed_c(&H->instruction, H->passed, count, &H->signer, seeds ? 1 : 0);
}

/* TransferChecked; accounts 0 to 3 are passed. The channel signs where it is the authority. */
static u64 transfer(u64 token_program, u64 mint, u64 amount) {
    H->message[0] = 12;
    *(u64 *)(H->message + 1) = amount;
    H->message[9] = H->account[mint].data[44];
    set_channel_seeds();
    return invoke(token_program, 4, 10, 8);
}

/* Programs may invoke themselves; the signature of the event authority makes it an event. */
static u64 emit(u64 authority, u64 program, u64 length) {
    *(u64 *)H->message = 0x1d9acb512ea545e4;
    *(u64 *)H->text = 0x75615f746e657665; /* "event_authority" */
    *(u64 *)(H->text + 8) = 0x00797469726f6874;
    H->bump[0] = EVENT_BUMP;
    seed(0, H->text, 15);
    seed(1, H->bump, 1);
    pass(0, authority, 0, 1);
    return invoke(program, 1, length, 2);
}

/* --- Vouchers */

/* Applies the voucher that the instruction before has verified. */
static u64 settle_voucher(u64 sysvar, const Key *address) {
    const Account *account = &H->account[sysvar];
    u64 index = *(u16 *)(account->data + account->length - 2);
    REQUIRE(index, 230);
    const u8 *at = account->data + *(u16 *)(account->data + 2 * index); /* The table follows the count. */
    u64 accounts = *(u16 *)at;
    at += 2 + 33 * accounts;
    REQUIRE(is((const Key *)at, ED25519_PROGRAM), 230);
    u64 length = *(u16 *)(at + 32);
    const SignedVoucher *verified = (const SignedVoucher *)(at + 34);
    REQUIRE(!accounts && length == sizeof(SignedVoucher), 231);
    REQUIRE(verified->header[0] == 0x0010ffff00300001 && verified->header[1] == 0xffff00320070ffff, 231);
    const Voucher *voucher = &verified->voucher;
    REQUIRE(voucher->magic[0] == 0x56 && voucher->magic[1] == 0x01, 238);
    REQUIRE(same(&voucher->channel, address), 232);
    sol_get_clock_sysvar(&H->clock);
    REQUIRE(!voucher->expires_at || H->clock.now < voucher->expires_at, 233);
    REQUIRE(voucher->cumulative <= H->channel.deposit, 235);
    REQUIRE(voucher->cumulative > H->channel.settled, 234);
    REQUIRE(same(&verified->signer, &H->channel.signer), 237);
    H->channel.settled = voucher->cumulative;
    return 0;
}

/* --- Instructions; one without arguments ignores what follows its discriminator */

static u64 open(void) {
    enum { PAYER_AT, LENDER, PAYEE_AT, MINT, SIGNER, CHANNEL, SOURCE, ESCROW, TOKENS, SYSTEM, RENT, ATAS, AUTHORITY, SELF, ALL };
    const Opening *opening = (const Opening *)H->data;
    Channel *channel = &H->channel;
    REQUIRE(H->count == ALL, NOT_ENOUGH_ACCOUNT_KEYS);
    REQUIRE(H->length >= sizeof(Opening), INVALID_INSTRUCTION_DATA);
    TRY(read_shares(&opening->shares, H->length - (sizeof(Opening) - sizeof(Shares))));
    REQUIRE(H->account[PAYER_AT].is_signer && H->account[LENDER].is_signer, 1);
    REQUIRE(is(key_of(TOKENS), TOKEN_PROGRAM), 54);
    REQUIRE(is(key_of(SYSTEM), SYSTEM_PROGRAM) && is(key_of(ATAS), ATA_PROGRAM), INCORRECT_PROGRAM_ID);
    REQUIRE(is(key_of(RENT), RENT_SYSVAR), UNSUPPORTED_SYSVAR);
    REQUIRE(is(key_of(AUTHORITY), EVENT_AUTHORITY), 8);
    REQUIRE(same(key_of(SELF), H->program), INCORRECT_PROGRAM_ID);
    REQUIRE(!same(key_of(PAYER_AT), key_of(PAYEE_AT)), 2001);
    REQUIRE(opening->deposit, 200);
    REQUIRE(opening->grace, 201);
    REQUIRE(!sol_curve_validate_point(0, key_of(SIGNER), &H->found), 2002);
    sol_get_clock_sysvar(&H->clock);
    REQUIRE(opening->open_slot <= H->clock.slot && H->clock.slot - opening->open_slot <= WINDOW, 2003);

    channel->discriminator = 1;
    channel->version = 1;
    channel->status = OPEN;
    channel->salt = opening->salt;
    channel->deposit = opening->deposit;
    channel->settled = channel->paid = 0;
    channel->closing_since = channel->withdrawn_at = 0;
    channel->grace = opening->grace;
    copy_key(&channel->payer, key_of(PAYER_AT));
    copy_key(&channel->payee, key_of(PAYEE_AT));
    copy_key(&channel->signer, key_of(SIGNER));
    copy_key(&channel->mint, key_of(MINT));
    copy_key(&channel->rent_payer, key_of(LENDER));
    channel->open_slot = opening->open_slot;
    set_channel_seeds();
    sol_try_find_program_address(H->seed, 7, H->program, &H->found, H->bump);
    channel->bump = H->bump[0];
    REQUIRE(same(key_of(CHANNEL), &H->found), 2000);
    TRY(check_shares(key_of(CHANNEL)));
    hash_shares(&opening->shares, &channel->distribution);
    const Account *mint = &H->account[MINT];
    REQUIRE(is(mint->owner, TOKEN_PROGRAM) && mint->length == MINT_BYTES && mint->data[45] == 1, 53);
    TRY(check_payers_account(SOURCE));
    REQUIRE(is_token_account_of(ESCROW, key_of(CHANNEL)), 50);

    /* Not one step to create the account, which any lamport sent there before would prevent. */
    u64 *rent = (u64 *)H->account[RENT].data;
    u64 needed = (CHANNEL_BYTES + 128) * rent[0] * (rent[1] == 0x4000000000000000 ? 2 : 1);
    u64 present = *H->account[CHANNEL].lamports;
    if (present < needed) {
        pass(0, LENDER, 1, 1);
        pass(1, CHANNEL, 1, 0);
        *(u32 *)H->message = 2; /* Transfer */
        *(u64 *)(H->message + 4) = needed - present;
        TRY(invoke(SYSTEM, 2, 12, 0));
    }
    pass(0, CHANNEL, 1, 1);
    set_channel_seeds();
    *(u32 *)H->message = 8; /* Allocate */
    *(u64 *)(H->message + 4) = CHANNEL_BYTES;
    TRY(invoke(SYSTEM, 1, 12, 8));
    pass(0, CHANNEL, 1, 1);
    *(u32 *)H->message = 1; /* Assign */
    copy_key(H->message + 4, H->program);
    TRY(invoke(SYSTEM, 1, 36, 8));
    pass(0, LENDER, 1, 1);
    pass(1, ESCROW, 1, 0);
    pass(2, CHANNEL, 0, 0);
    pass(3, MINT, 0, 0);
    pass(4, SYSTEM, 0, 0);
    pass(5, TOKENS, 0, 0);
    H->message[0] = 1; /* CreateIdempotent */
    TRY(invoke(ATAS, 6, 1, 0));
    pass(0, SOURCE, 1, 0);
    pass(1, MINT, 0, 0);
    pass(2, ESCROW, 1, 0);
    pass(3, PAYER_AT, 0, 1);
    TRY(transfer(TOKENS, MINT, opening->deposit));
    write_channel(CHANNEL);
    OpenedEvent *event = (OpenedEvent *)H->message;
    event->kind = 0x6dbd4c4d0961aca6;
    copy_key(&event->channel, key_of(CHANNEL));
    event->open_slot = channel->open_slot;
    return emit(AUTHORITY, SELF, sizeof(OpenedEvent));
}

static u64 settle(void) {
    REQUIRE(H->count == 2, NOT_ENOUGH_ACCOUNT_KEYS);
    REQUIRE(is(key_of(1), INSTRUCTIONS_SYSVAR), UNSUPPORTED_SYSVAR);
    TRY(read_channel(0));
    REQUIRE(H->channel.status == OPEN, 2);
    TRY(settle_voucher(1, key_of(0)));
    write_channel(0);
    return 0;
}

static u64 top_up(void) {
    enum { PAYER_AT, CHANNEL, SOURCE, ESCROW, MINT, TOKENS, ALL };
    REQUIRE(H->count == ALL, 9);
    REQUIRE(H->length == 9, INVALID_INSTRUCTION_DATA);
    u64 amount = *(u64 *)(H->data + 1);
    REQUIRE(H->account[PAYER_AT].is_signer, 1);
    TRY(read_channel(CHANNEL));
    REQUIRE(H->channel.status == OPEN, 2);
    REQUIRE(same(key_of(PAYER_AT), &H->channel.payer), 5);
    REQUIRE(amount, 200);
    REQUIRE(H->channel.deposit + amount > amount, 2100);
    REQUIRE(same(key_of(MINT), &H->channel.mint), 7);
    REQUIRE(is(key_of(TOKENS), TOKEN_PROGRAM), 54);
    TRY(check_payers_account(SOURCE));
    TRY(check_escrow(ESCROW, key_of(CHANNEL)));
    H->channel.deposit += amount;
    write_channel(CHANNEL);
    pass(0, SOURCE, 1, 0);
    pass(1, MINT, 0, 0);
    pass(2, ESCROW, 1, 0);
    pass(3, PAYER_AT, 0, 1);
    return transfer(TOKENS, MINT, amount);
}

static u64 settle_and_seal(void) {
    enum { PAYEE_AT, CHANNEL, INSTRUCTIONS, ALL };
    REQUIRE(H->count == ALL, 9);
    REQUIRE(H->length == 2, INVALID_INSTRUCTION_DATA);
    REQUIRE(is(key_of(INSTRUCTIONS), INSTRUCTIONS_SYSVAR), UNSUPPORTED_SYSVAR);
    REQUIRE(H->account[PAYEE_AT].is_signer, 1);
    TRY(read_channel(CHANNEL));
    REQUIRE(same(key_of(PAYEE_AT), &H->channel.payee), 6);
    if (H->channel.status != OPEN) {
        REQUIRE(H->channel.status == CLOSING, 2);
        sol_get_clock_sysvar(&H->clock);
        REQUIRE(H->clock.now < H->channel.closing_since + (i64)H->channel.grace, 2);
    }
    if (H->data[1]) TRY(settle_voucher(INSTRUCTIONS, key_of(CHANNEL)));
    H->channel.status = SEALED;
    write_channel(CHANNEL);
    return 0;
}

static u64 request_close(void) {
    enum { PAYER_AT, CHANNEL, ALL };
    REQUIRE(H->count == ALL, NOT_ENOUGH_ACCOUNT_KEYS);
    REQUIRE(H->account[PAYER_AT].is_signer, 1);
    TRY(read_channel(CHANNEL));
    REQUIRE(same(key_of(PAYER_AT), &H->channel.payer), 5);
    REQUIRE(H->channel.status == OPEN, 2);
    sol_get_clock_sysvar(&H->clock);
    H->channel.status = CLOSING;
    H->channel.closing_since = H->clock.now;
    write_channel(CHANNEL);
    return 0;
}

static u64 seal(void) {
    REQUIRE(H->count == 1, NOT_ENOUGH_ACCOUNT_KEYS);
    TRY(read_channel(0));
    REQUIRE(H->channel.status == CLOSING, 2);
    sol_get_clock_sysvar(&H->clock);
    REQUIRE(H->clock.now >= H->channel.closing_since + (i64)H->channel.grace, 2201);
    H->channel.status = SEALED;
    write_channel(0);
    return 0;
}

static void free_channel(u64 index, u64 lender) {
    Account *account = &H->account[index];
    *H->account[lender].lamports += *account->lamports;
    *account->lamports = 0;
    ((u64 *)account->data)[-1] = 0;
    set(account->owner, SYSTEM_PROGRAM);
}

/* Accounts of `distribute`; those of the recipients follow. */
enum { D_CHANNEL, D_PAYER, D_LENDER, D_ESCROW, D_REFUND, D_PAYEE, D_TREASURY, D_MINT, D_TOKENS, D_AUTHORITY, D_SELF, D_RECIPIENTS };

/* The amount times bps / 10,000, rounded down, without 128-bit numbers. */
INLINE u64 part(u64 amount, u64 bps) { return amount / WHOLE * bps + amount % WHOLE * bps / WHOLE; }

INLINE u64 due(u64 bps) { return part(H->channel.settled, bps) - part(H->channel.paid, bps); }

static u64 send(u64 index, u64 amount) {
    if (!amount) return 0;
    pass(0, D_ESCROW, 1, 0);
    pass(1, D_MINT, 0, 0);
    pass(2, index, 1, 0);
    pass(3, D_CHANNEL, 0, 1);
    return transfer(D_TOKENS, D_MINT, amount);
}

static u64 pay(u64 index, const Key *owner, u64 beneficiary, u64 amount) {
    u64 reason = amount ? fault_of(index, owner) : HEALTHY;
    if (reason == HEALTHY) return send(index, amount);
    H->lost += amount;
    RedirectedEvent *event = (RedirectedEvent *)H->message;
    event->kind = 0x5054a754d7b916d1;
    copy_key(&event->channel, key_of(D_CHANNEL));
    copy_key(&event->owner, owner);
    event->amount = amount;
    event->beneficiary = beneficiary;
    event->reason = reason;
    return emit(D_AUTHORITY, D_SELF, sizeof(RedirectedEvent));
}

static u64 check_treasury(void) {
    set(&H->treasury, MAINNET_TREASURY);
    if (!is_token_account_of(D_TREASURY, &H->treasury)) {
        set(&H->treasury, DEVNET_TREASURY);
        REQUIRE(is_token_account_of(D_TREASURY, &H->treasury), 2401);
    }
    REQUIRE(fault_of(D_TREASURY, &H->treasury) == HEALTHY, 2402);
    return 0;
}

static u64 distribute(void) {
    Channel *channel = &H->channel;
    const Shares *shares = (const Shares *)(H->data + 1);
    REQUIRE(H->count >= D_RECIPIENTS, NOT_ENOUGH_ACCOUNT_KEYS);
    TRY(read_channel(D_CHANNEL));
    REQUIRE(channel->status == OPEN || channel->status == SEALED, 2400);
    TRY(read_shares(shares, H->length - 1));
    hash_shares(shares, &H->found);
    REQUIRE(same(&H->found, &channel->distribution), 2407);
    REQUIRE(H->count == D_RECIPIENTS + H->shares, 2409);
    REQUIRE(channel->paid <= channel->settled, 2410);
    REQUIRE(channel->status == SEALED || channel->settled > channel->paid, 2408);
    REQUIRE(same(key_of(D_PAYER), &channel->payer), 5);
    REQUIRE(same(key_of(D_LENDER), &channel->rent_payer), 10);
    REQUIRE(same(key_of(D_MINT), &channel->mint), 7);
    REQUIRE(is(key_of(D_TOKENS), TOKEN_PROGRAM), 54);
    REQUIRE(is(key_of(D_AUTHORITY), EVENT_AUTHORITY), 8);
    REQUIRE(same(key_of(D_SELF), H->program), INCORRECT_PROGRAM_ID);
    TRY(check_escrow(D_ESCROW, key_of(D_CHANNEL)));
    REQUIRE(is_token_account_of(D_REFUND, &channel->payer), 57);
    REQUIRE(is_token_account_of(D_PAYEE, &channel->payee), 60);
    TRY(check_treasury());

    u64 rest = WHOLE, total = 0, whole = 0;
    for (u64 index = 0; index < H->shares; index++) {
        REQUIRE(is_token_account_of(D_RECIPIENTS + index, &H->recipient[index]), 2404);
        rest -= H->bps[index];
        total += due(H->bps[index]);
        whole += part(channel->settled, H->bps[index]);
    }
    total += due(rest);
    whole += part(channel->settled, rest);
    u64 refund = 0;
    if (channel->status == SEALED) {
        if (!channel->withdrawn_at) refund = channel->deposit - channel->settled;
        total += refund + (channel->settled - whole);
    }
    REQUIRE(token_at(D_ESCROW)->amount >= total, 2411);

    H->lost = 0;
    for (u64 index = 0; index < H->shares; index++)
        TRY(pay(D_RECIPIENTS + index, &H->recipient[index], RECIPIENT, due(H->bps[index])));
    TRY(pay(D_PAYEE, &channel->payee, PAYEE, due(rest)));
    TRY(pay(D_REFUND, &channel->payer, PAYER, refund));
    channel->paid = channel->settled;
    if (channel->status == OPEN) {
        TRY(send(D_TREASURY, H->lost));
        write_channel(D_CHANNEL);
        return 0;
    }
    TRY(send(D_TREASURY, token_at(D_ESCROW)->amount));
    pass(0, D_ESCROW, 1, 0);
    pass(1, D_LENDER, 1, 0);
    pass(2, D_CHANNEL, 0, 1);
    H->message[0] = 9; /* CloseAccount */
    set_channel_seeds();
    TRY(invoke(D_TOKENS, 3, 1, 8));
    channel->status = DISTRIBUTED;
    write_channel(D_CHANNEL);
    sol_get_clock_sysvar(&H->clock);
    if (H->clock.slot > channel->open_slot + WINDOW) free_channel(D_CHANNEL, D_LENDER);
    return 0;
}

static u64 withdraw_payer(void) {
    enum { PAYER_AT, CHANNEL, ESCROW, REFUND, MINT, TOKENS, ALL };
    REQUIRE(H->count == ALL, NOT_ENOUGH_ACCOUNT_KEYS);
    REQUIRE(H->account[PAYER_AT].is_signer, 1);
    TRY(read_channel(CHANNEL));
    REQUIRE(H->channel.status == SEALED, 2);
    REQUIRE(same(key_of(PAYER_AT), &H->channel.payer), 5);
    REQUIRE(!H->channel.withdrawn_at, 2300);
    u64 amount = H->channel.deposit - H->channel.settled;
    REQUIRE(amount, 200);
    REQUIRE(same(key_of(MINT), &H->channel.mint), 7);
    REQUIRE(is(key_of(TOKENS), TOKEN_PROGRAM), 54);
    TRY(check_escrow(ESCROW, key_of(CHANNEL)));
    TRY(check_payers_account(REFUND));
    sol_get_clock_sysvar(&H->clock);
    H->channel.withdrawn_at = H->clock.now;
    write_channel(CHANNEL);
    pass(0, ESCROW, 1, 0);
    pass(1, MINT, 0, 0);
    pass(2, REFUND, 1, 0);
    pass(3, CHANNEL, 0, 1);
    return transfer(TOKENS, MINT, amount);
}

static u64 reclaim(void) {
    enum { CHANNEL, LENDER, ALL };
    REQUIRE(H->count == ALL, NOT_ENOUGH_ACCOUNT_KEYS);
    TRY(read_channel(CHANNEL));
    REQUIRE(H->channel.status == DISTRIBUTED, 2);
    REQUIRE(same(key_of(LENDER), &H->channel.rent_payer), 10);
    sol_get_clock_sysvar(&H->clock);
    REQUIRE(H->clock.slot > H->channel.open_slot + WINDOW, 2414);
    free_channel(CHANNEL, LENDER);
    return 0;
}

static u64 accept_event(void) {
    REQUIRE(H->count == 1, NOT_ENOUGH_ACCOUNT_KEYS);
    REQUIRE(is(key_of(0), EVENT_AUTHORITY), 8);
    REQUIRE(H->account[0].is_signer, 1);
    return 0;
}

u64 entrypoint(u8 *input) {
    parse(input);
    REQUIRE(H->length, INVALID_INSTRUCTION_DATA);
    switch (H->data[0]) {
    case 1: return open();
    case 2: return settle();
    case 3: return top_up();
    case 4: return settle_and_seal();
    case 5: return request_close();
    case 6: return seal();
    case 7: return distribute();
    case 8: return withdraw_payer();
    case 9: return reclaim();
    case 228: return accept_event();
    default: return INVALID_INSTRUCTION_DATA;
    }
}
