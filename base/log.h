// SPDX-License-Identifier: Apache-2.0
// base/log.h - structured events, level by subsystem; silent until the program sets a sink.
#ifndef HTH_BASE_LOG_H
#define HTH_BASE_LOG_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum hth_log_level {
    HTH_LEVEL_NONE, // nothing passes
    HTH_LEVEL_ERROR,
    HTH_LEVEL_WARN,
    HTH_LEVEL_INFO,
    HTH_LEVEL_DEBUG,
    HTH_LEVEL_TRACE,
    HTH_N_LEVEL
} hth_log_level;

typedef enum hth_subsystem {
    HTH_SUBSYS_BASE,
    HTH_SUBSYS_GRAPH,
    HTH_SUBSYS_DEVICE,
    HTH_SUBSYS_STORE,
    HTH_SUBSYS_KERNELS,
    HTH_SUBSYS_CONVSEL,
    HTH_SUBSYS_MEMMGR,
    HTH_SUBSYS_SERVER,
    HTH_SUBSYS_CLIENT,
    HTH_N_SUBSYS
} hth_subsystem;

typedef struct hth_log_record {
    hth_log_level level;
    hth_subsystem subsystem;
    const char *event; // "put-done"
    const char *text;  // "model=vgg version=3"; one line (utf8.h), at most 1,023 bytes
    uint64_t time_ns;  // hth_now_ns
} hth_log_record;      // everything valid only during the sink's call

// hth_log_sink sets who receives records; NULL: nobody. Calls to the sink are serialised, on the
// logging threads; it must not log. When hth_log_sink returns, the old sink is no longer being
// called. Any thread but the sink's.
void hth_log_sink(void (*sink)(void *ctx, const hth_log_record *record), void *ctx);
// hth_log_filter sets what passes: "info", or "warn,store=debug,server=trace". HTH_EINVAL names the
// bad word and nothing changes. The initial filter is "info".
hth_err hth_log_filter(const char *spec);
hth_err hth_log_filter_check(const char *spec); // the same without setting anything
// hth_log_filter_text writes what passes now as hth_log_filter takes it and returns `out`, of at
// least HTH_LOG_FILTER_TEXT bytes.
#define HTH_LOG_FILTER_TEXT 256
const char *hth_log_filter_text(char *out);
const char *hth_log_level_name(hth_log_level level);     // "error"; "?" when out of range
const char *hth_subsystem_name(hth_subsystem subsystem); // "store"; "?" when out of range

bool hth_log_enabled(hth_log_level level, hth_subsystem subsystem);
void hth_log_write(hth_log_level level, hth_subsystem subsystem, const char *event, const char *fmt,
                   ...) __attribute__((format(printf, 4, 5)));

// The most talkative level that is compiled in.
#ifdef HTH_DEBUG
#define HTH_LOG_COMPILED HTH_LEVEL_TRACE
#else
#define HTH_LOG_COMPILED HTH_LEVEL_DEBUG
#endif

// hth_log(INFO, STORE, "put-done", "model=%s version=%d", name, version): the arguments are
// evaluated only when the record passes the filter and somebody listens.
#define hth_log(LEVEL, SUBSYSTEM, event, ...)                                                      \
    do {                                                                                           \
        if (HTH_LEVEL_##LEVEL <= HTH_LOG_COMPILED &&                                               \
            hth_log_enabled(HTH_LEVEL_##LEVEL, HTH_SUBSYS_##SUBSYSTEM)) {                          \
            hth_log_write(HTH_LEVEL_##LEVEL, HTH_SUBSYS_##SUBSYSTEM, event, __VA_ARGS__);          \
        }                                                                                          \
    } while (0)

#endif
