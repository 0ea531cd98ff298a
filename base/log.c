// SPDX-License-Identifier: Apache-2.0
// The filter is one atomic level per subsystem, read without a lock on every call site; the sink is
// called under a mutex, so that sinks need no lock of their own and can be taken away safely. A
// library that prints by itself would spoil the output of the program that embeds it: hence no
// default sink.
#include "base/log.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static void (*log_sink)(void *ctx, const hth_log_record *record); // guarded by log_lock
static void *log_ctx;                                             // guarded by log_lock
static atomic_bool log_listening;
static atomic_int log_level[HTH_N_SUBSYS] = {HTH_LEVEL_INFO, HTH_LEVEL_INFO, HTH_LEVEL_INFO,
                                             HTH_LEVEL_INFO, HTH_LEVEL_INFO, HTH_LEVEL_INFO,
                                             HTH_LEVEL_INFO, HTH_LEVEL_INFO, HTH_LEVEL_INFO};

static const char *const level_names[HTH_N_LEVEL] = {"none", "error", "warn",
                                                     "info", "debug", "trace"};
static const char *const subsys_names[HTH_N_SUBSYS] = {
    "base", "graph", "device", "store", "kernels", "convsel", "memmgr", "server", "client"};

const char *hth_log_level_name(hth_log_level level)
{
    return (unsigned)level < HTH_N_LEVEL ? level_names[level] : "?";
}

const char *hth_subsystem_name(hth_subsystem subsystem)
{
    return (unsigned)subsystem < HTH_N_SUBSYS ? subsys_names[subsystem] : "?";
}

void hth_log_sink(void (*sink)(void *ctx, const hth_log_record *record), void *ctx)
{
    pthread_mutex_lock(&log_lock);
    log_sink = sink;
    log_ctx = ctx;
    atomic_store(&log_listening, sink != NULL);
    pthread_mutex_unlock(&log_lock);
}

static int log_find(const char *const *names, int n, const char *word, size_t len)
{
    for (int i = 0; i < n; i++) {
        if (strlen(names[i]) == len && memcmp(names[i], word, len) == 0) {
            return i;
        }
    }
    return -1;
}

// log_refuse says what a filter's word may be: a level, or the subsystem before it.
static hth_err log_refuse(const char *word, int len, bool level)
{
    const char *const *names = level ? level_names : subsys_names;
    int count = level ? HTH_N_LEVEL : HTH_N_SUBSYS;
    char all[200] = "";
    for (int i = 0; i < count; i++) {
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", i > 0 ? ", " : "", names[i]);
    }
    return hth_fail(HTH_EINVAL, "log filter '%.*s': not LEVEL or SUBSYSTEM=LEVEL; the %s are %s",
                    len, word, level ? "levels" : "subsystems", all);
}

// log_apply_word applies "level" or "subsystem=level" to `level`.
static hth_err log_apply_word(const char *word, size_t len, int *level)
{
    const char *eq = memchr(word, '=', len);
    const char *value = eq ? eq + 1 : word;
    int lv = log_find(level_names, HTH_N_LEVEL, value, len - (size_t)(value - word));
    int only = eq ? log_find(subsys_names, HTH_N_SUBSYS, word, (size_t)(eq - word)) : -1;
    if (lv < 0 || (eq && only < 0)) {
        return log_refuse(word, (int)len, lv < 0);
    }
    for (int s = 0; s < HTH_N_SUBSYS; s++) {
        if (only < 0 || s == only) {
            level[s] = lv;
        }
    }
    return HTH_OK;
}

static hth_err log_apply(const char *spec, int *level)
{
    for (const char *p = spec;; p++) {
        size_t len = strcspn(p, ",");
        HTH_TRY(log_apply_word(p, len, level));
        p += len;
        if (*p == '\0') {
            return HTH_OK;
        }
    }
}

hth_err hth_log_filter_check(const char *spec)
{
    int level[HTH_N_SUBSYS];
    return log_apply(spec, level);
}

hth_err hth_log_filter(const char *spec)
{
    int level[HTH_N_SUBSYS];
    for (int s = 0; s < HTH_N_SUBSYS; s++) {
        level[s] = atomic_load(&log_level[s]);
    }
    HTH_TRY(log_apply(spec, level));
    for (int s = 0; s < HTH_N_SUBSYS; s++) {
        atomic_store(&log_level[s], level[s]);
    }
    return HTH_OK;
}

const char *hth_log_filter_text(char *out)
{
    size_t n = 0;
    for (int s = 0; s < HTH_N_SUBSYS; s++) {
        n += (size_t)snprintf(out + n, HTH_LOG_FILTER_TEXT - n, "%s%s=%s", s > 0 ? "," : "",
                              subsys_names[s], level_names[atomic_load(&log_level[s])]);
    }
    return out;
}

bool hth_log_enabled(hth_log_level level, hth_subsystem subsystem)
{
    return atomic_load_explicit(&log_listening, memory_order_relaxed) &&
           (int)level <= atomic_load_explicit(&log_level[subsystem], memory_order_relaxed);
}

void hth_log_write(hth_log_level level, hth_subsystem subsystem, const char *event, const char *fmt,
                   ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    hth_utf8_plain(text); // names and sentences are others'
    hth_log_record r = {level, subsystem, event, text, hth_now_ns()};
    pthread_mutex_lock(&log_lock);
    if (log_sink != NULL) {
        log_sink(log_ctx, &r);
    }
    pthread_mutex_unlock(&log_lock);
}
