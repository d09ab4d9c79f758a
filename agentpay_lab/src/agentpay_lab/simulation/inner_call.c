/* A program that calls another one: the first account is that program, the rest and the data are passed on.
 *
 * Sellers hide the steps of a channel in it. `scripts/channel_program.py` builds it.
 */

typedef unsigned char u8;
typedef unsigned long u64;

typedef struct {
    void *key;
    u64 *lamports;
    u64 length;
    u8 *data;
    void *owner;
    u64 rent_epoch;
    u8 is_signer, is_writable, is_executable;
} Account;

typedef struct { void *key; u8 is_writable, is_signer; } Meta;
typedef struct { void *program; Meta *accounts; u64 count; const void *data; u64 length; } Instruction;

enum { MAX_ACCOUNTS = 32 };

typedef struct {
    Account account[MAX_ACCOUNTS];
    Meta meta[MAX_ACCOUNTS];
    Instruction instruction;
} Heap;

#define H ((Heap *)0x300000000UL)

u64 sol_invoke_signed_c(const Instruction *, const Account *, u64, const void *, u64);

u64 entrypoint(u8 *at) {
    u64 count = *(u64 *)at;
    if (!count || count > MAX_ACCOUNTS) return 1;
    at += 8;
    for (u64 index = 0; index < count; index++) {
        Account *account = &H->account[index];
        if (*at != 0xff) { /* The account at an earlier index again. */
            *account = H->account[*at];
            at += 8;
        } else {
            account->is_signer = at[1];
            account->is_writable = at[2];
            account->is_executable = at[3];
            account->key = at + 8;
            account->owner = at + 40;
            account->lamports = (u64 *)(at + 72);
            account->length = *(u64 *)(at + 80);
            account->data = at + 88;
            account->rent_epoch = 0;
            at += 88 + account->length + 10240;
            at = (u8 *)(((u64)at + 7) & ~7UL) + 8;
        }
        if (index) {
            Meta *meta = &H->meta[index - 1];
            meta->key = account->key;
            meta->is_writable = account->is_writable;
            meta->is_signer = account->is_signer;
        }
    }
    H->instruction.program = H->account[0].key;
    H->instruction.accounts = H->meta;
    H->instruction.count = count - 1;
    H->instruction.data = at + 8;
    H->instruction.length = *(u64 *)at;
    return sol_invoke_signed_c(&H->instruction, H->account, count, 0, 0);
}
