// SPDX-License-Identifier: Apache-2.0
#include "base/stats.h"

#include <stdatomic.h>

static const hth_stat_info stat_table[HTH_N_STATS] = {
#define STAT_ROW(id, name, unit, help) {name, unit, help},
    HTH_STATS(STAT_ROW)
#undef STAT_ROW
};
static _Atomic uint64_t stat_value[HTH_N_STATS];

const hth_stat_info *hth_stat_get_info(hth_stat stat)
{
    return &stat_table[stat];
}

void hth_stat_add(hth_stat stat, uint64_t n)
{
    atomic_fetch_add_explicit(&stat_value[stat], n, memory_order_relaxed);
}

uint64_t hth_stat_get(hth_stat stat)
{
    return atomic_load_explicit(&stat_value[stat], memory_order_relaxed);
}
