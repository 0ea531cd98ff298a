// SPDX-License-Identifier: Apache-2.0
// base/thread.h - named threads that leave the program's signals alone.
#ifndef HTH_BASE_THREAD_H
#define HTH_BASE_THREAD_H

#include "base/err.h"

#include <pthread.h>

// hth_thread_start runs fn(ctx) on a new thread named `name` (cut at 15 bytes) with all signals
// blocked: signals belong to the program's own threads. The caller joins it by hth_thread_join.
// HTH_ENOMEM, HTH_EIO: no thread runs.
hth_err hth_thread_start(const char *name, void (*fn)(void *ctx), void *ctx, pthread_t *out);
// hth_thread_join waits until the thread's fn has returned.
void hth_thread_join(pthread_t t);

#endif
