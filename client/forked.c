// SPDX-License-Identifier: Apache-2.0
#include "client/forked.h"

#include <pthread.h>
#include <stdatomic.h>

static pthread_once_t forked_once = PTHREAD_ONCE_INIT;
static atomic_uint forked_count;

static void forked_child(void)
{
    atomic_fetch_add_explicit(&forked_count, 1, memory_order_relaxed);
}

static void forked_watch(void)
{
    pthread_atfork(NULL, NULL, forked_child);
}

void hth_forked_begin(void)
{
    pthread_once(&forked_once, forked_watch);
}

unsigned hth_forks(void)
{
    return atomic_load_explicit(&forked_count, memory_order_relaxed);
}
