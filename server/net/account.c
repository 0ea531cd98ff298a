// SPDX-License-Identifier: Apache-2.0
#include "server/net/account.h"

#include "base/settings.h"

#include <assert.h>
#include <stdatomic.h>

static _Atomic uint64_t account_bytes;

static uint64_t account_limit(void)
{
    return (uint64_t)hth_setting_int(HTH_SET_HTTP_BUFFERED_BYTES);
}

bool hth_account_take(uint64_t bytes)
{
    uint64_t limit = account_limit(), before = atomic_load(&account_bytes);
    do {
        if (bytes > limit || before > limit - bytes) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&account_bytes, &before, before + bytes));
    return true;
}

void hth_account_add(uint64_t bytes)
{
    atomic_fetch_add(&account_bytes, bytes);
}

void hth_account_give(uint64_t bytes)
{
    uint64_t before = atomic_fetch_sub(&account_bytes, bytes);
    assert(before >= bytes);
    (void)before;
}

uint64_t hth_account_bytes(void)
{
    return atomic_load(&account_bytes);
}

bool hth_account_full(void)
{
    return atomic_load(&account_bytes) > account_limit();
}
