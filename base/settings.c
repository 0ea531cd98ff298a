// SPDX-License-Identifier: Apache-2.0
// Numbers are doubles: every count and size up to 2^53 is exact, and all ranges end below. Texts
// have a place of fixed size each, so that setting one needs no memory.
#include "base/settings.h"

#include "base/log.h"
#include "base/spelling.h"

#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const hth_setting_info setting_table[HTH_N_SETTINGS] = {
#define SETTING_NUMBER(id, name, kind, dflt, min, max, change, help)                               \
    {name, HTH_KIND_##kind, dflt, min, max, NULL, NULL, HTH_CHANGE_##change, help},
#define SETTING_TEXT(id, name, kind, dflt, words, change, help)                                    \
    {name, HTH_KIND_##kind, 0, 0, 0, dflt, words, HTH_CHANGE_##change, help},
    HTH_TEXT_SETTINGS(SETTING_TEXT) HTH_SETTINGS(SETTING_NUMBER)
#undef SETTING_NUMBER
#undef SETTING_TEXT
};

static const hth_setting_rename setting_renames[HTH_N_RENAMED_SETTINGS] = {
#define SETTING_RENAME(was, id) {was, HTH_SET_##id},
    HTH_RENAMED_SETTINGS(SETTING_RENAME)
#undef SETTING_RENAME
};

static _Atomic double setting_number[HTH_N_SETTINGS] = {
#define SETTING_DEFAULT(id, name, kind, dflt, ...) [HTH_SET_##id] = (dflt),
    HTH_SETTINGS(SETTING_DEFAULT)
#undef SETTING_DEFAULT
};

static pthread_mutex_t setting_lock = PTHREAD_MUTEX_INITIALIZER;
static char setting_chars[HTH_N_SETTINGS][HTH_SETTING_TEXT] = { // guarded by setting_lock
#define SETTING_DEFAULT(id, name, kind, dflt, ...) [HTH_SET_##id] = (dflt),
    HTH_TEXT_SETTINGS(SETTING_DEFAULT)
#undef SETTING_DEFAULT
};

static _Atomic uint64_t setting_changes;

static const char size_units[] = "KMGT"; // 2^10, 2^20, ..

const hth_setting_info *hth_setting_get_info(hth_setting setting)
{
    return &setting_table[setting];
}

double hth_setting_real(hth_setting setting)
{
    return atomic_load_explicit(&setting_number[setting], memory_order_relaxed);
}

int64_t hth_setting_int(hth_setting setting)
{
    return (int64_t)hth_setting_real(setting);
}

const char *hth_setting_text(hth_setting setting, char *out)
{
    pthread_mutex_lock(&setting_lock);
    strcpy(out, setting_chars[setting]);
    pthread_mutex_unlock(&setting_lock);
    return out;
}

static void setting_store_text(int i, const char *text)
{
    pthread_mutex_lock(&setting_lock);
    snprintf(setting_chars[i], HTH_SETTING_TEXT, "%s", text);
    pthread_mutex_unlock(&setting_lock);
}

void hth_setting_reset(void)
{
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        atomic_store(&setting_number[i], setting_table[i].dflt);
        setting_store_text(i, setting_table[i].text != NULL ? setting_table[i].text : "");
    }
}

// parse_number reads a plain non-negative decimal number (no hexadecimal, sign, infinity) and what
// follows it.
static bool parse_number(const char *text, double *out, const char **rest)
{
    if (!isdigit((unsigned char)text[0]) || tolower((unsigned char)text[1]) == 'x') {
        return false;
    }
    char *end;
    *out = strtod(text, &end);
    *rest = end;
    return isfinite(*out);
}

// parse_unit reads "", "B", "K", "KB", "KiB", .. to a factor; 0 when it is none of them.
static double parse_unit(const char *unit)
{
    double factor = 1;
    const char *u = *unit ? strchr(size_units, toupper((unsigned char)*unit)) : NULL;
    if (u != NULL) {
        factor = ldexp(1.0, 10 * (int)(u - size_units + 1));
        unit++;
        unit += tolower((unsigned char)unit[0]) == 'i';
    }
    unit += toupper((unsigned char)unit[0]) == 'B';
    return *unit == '\0' ? factor : 0;
}

hth_err hth_parse_size(const char *text, uint64_t whole, uint64_t *out)
{
    double v, factor;
    const char *rest;
    if (!parse_number(text, &v, &rest)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not a size such as 512MiB or 2GiB%s", text,
                        whole ? " or 60%" : "");
    }
    if (strcmp(rest, "%") == 0) {
        if (whole == 0) {
            return hth_fail(
                HTH_EINVAL,
                "'%.80s': a percentage is not possible here; give bytes, such as 512MiB", text);
        }
        if (v > 100) {
            return hth_fail(HTH_EINVAL, "'%.80s' is more than 100%%", text);
        }
        *out = (uint64_t)(v / 100 * (double)whole);
        return HTH_OK;
    }
    factor = parse_unit(rest);
    if (factor == 0 || v * factor > 9007199254740992.0) {
        return hth_fail(HTH_EINVAL,
                        factor == 0 ? "'%.80s': the unit is not one of B, KiB, MiB, GiB, TiB"
                                    : "'%.80s' is too large",
                        text);
    }
    *out = (uint64_t)(v * factor);
    return HTH_OK;
}

const char *hth_setting_format(hth_setting_kind kind, double value, char *out, size_t cap)
{
    static const char *const suffix[] = {"", "KiB", "MiB", "GiB", "TiB"};
    int u = 0;
    if (kind == HTH_KIND_BYTES) {
        while (u < 4 && value >= 1024 && fmod(value, 1024) == 0) {
            value /= 1024;
            u++;
        }
    }
    snprintf(out, cap, kind == HTH_KIND_REAL ? "%.9g%s" : "%.0f%s", value, suffix[u]);
    return out;
}

int hth_setting_find(const char *name)
{
    int i = 0;
    while (i < HTH_N_SETTINGS && strcmp(setting_table[i].name, name) != 0) {
        i++;
    }
    for (int r = 0; i == HTH_N_SETTINGS && r < HTH_N_RENAMED_SETTINGS; r++) {
        i = strcmp(setting_renames[r].was, name) == 0 ? (int)setting_renames[r].setting : i;
    }
    return i;
}

const hth_setting_rename *hth_setting_get_rename(int i)
{
    return &setting_renames[i];
}

const char *hth_setting_old_name(const char *name)
{
    for (int r = 0; r < HTH_N_RENAMED_SETTINGS; r++) {
        if (strcmp(setting_renames[r].was, name) == 0) {
            return setting_renames[r].was;
        }
    }
    return NULL;
}

// What other servers call them.
static const hth_synonym setting_synonyms[] = {
    {"port", "http"},
    {"host", "http"},
    {"http-port", "http"},
    {"http-address", "http"},
    {"bind", "listen"},
    {"address", "listen"},
    {"addr", "listen"},
    {"socket", "listen"},
    {"url", "listen"},
    {"server", "listen"},
    {"tcp", "listen"},
    {"model-repository", "store"},
    {"model-store", "store"},
    {"repository", "store"},
    {"models", "store"},
    {"dir", "store"},
    {"data-dir", "store"},
    {"gpu", "device"},
    {"gpus", "device"},
    {"devices", "device"},
    {"threads", "device"},
    {"memory", "device"},
    {"mem", "device"},
    {"metrics-port", "metrics"},
    {"prometheus", "metrics"},
    {"cert", "tls.cert"},
    {"certificate", "tls.cert"},
    {"tls-certificate", "tls.cert"},
    {"ssl-certfile", "tls.cert"},
    {"key", "tls.key"},
    {"private-key", "tls.key"},
    {"ssl-keyfile", "tls.key"},
    {"tokens", "auth.tokens_file"},
    {"tokens-file", "auth.tokens_file"},
    {"token-file", "auth.tokens_file"},
    {"api-keys", "auth.tokens_file"},
    {"tenants", "tenant.file"},
    {"tenants-file", "tenant.file"},
    {"quotas", "tenant.file"},
    {"shm", "allow_client_shm"},
    {"shared-memory", "allow_client_shm"},
    {"log", "log.level"},
    {"verbose", "log.level"},
    {"verbosity", "log.level"},
    {"debug", "log.level"},
    {"log-verbose", "log.level"},
    {"prefix", "http.prefix"},
    {"base-path", "http.prefix"},
    {"root-path", "http.prefix"},
    {"allowed-hosts", "http.hosts"},
    {"max-batch", "batch.max"},
    {"max-batch-size", "batch.max"},
    {"batch-size", "batch.max"},
    {"max-queue-delay", "batch.delay_us"},
    {"queue-size", "queue.length"},
    {"timeout", "queue.timeout_us"},
    {"max-connections", "limits.connections"},
    {"max-request-size", "limits.message_bytes"},
    {"max-message-size", "limits.message_bytes"},
    {"onednn", "kernels.onednn"},
    {"cuda-home", "cuda.libs"},
    {NULL, NULL},
};

const char *hth_setting_means(const char *name)
{
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        if (hth_spelling_same(name, setting_table[i].name)) {
            return setting_table[i].name;
        }
    }
    return hth_spelling_means(setting_synonyms, name, NULL, NULL);
}

// setting_unknown says what may have been meant, or the closest name when it is close.
static hth_err setting_unknown(const char *name)
{
    const char *best = NULL, *means = hth_setting_means(name);
    int distance = 4;
    for (int i = 0; i < HTH_N_SETTINGS; i++) {
        hth_spelling_closer(name, setting_table[i].name, &distance, &best);
    }
    best = means != NULL ? means : best;
    return best != NULL ? hth_fail(HTH_ENOENT, "no setting '%.80s'; did you mean %s?", name, best)
                        : hth_fail(HTH_ENOENT, "no setting '%.80s'", name);
}

static hth_err setting_parse(const hth_setting_info *info, const char *text, double *out)
{
    if (info->kind == HTH_KIND_BYTES) {
        uint64_t bytes;
        HTH_TRY(hth_parse_size(text, 0, &bytes));
        *out = (double)bytes;
        return HTH_OK;
    }
    const char *rest;
    if (!parse_number(text, out, &rest) || *rest != '\0' ||
        (info->kind == HTH_KIND_COUNT && *out != floor(*out))) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not a %s", text,
                        info->kind == HTH_KIND_COUNT ? "whole number" : "number");
    }
    return HTH_OK;
}

static hth_err setting_check_number(const hth_setting_info *info, const char *text, double *out)
{
    char lo[32], hi[32];
    HTH_TRY(setting_parse(info, text, out));
    return *out >= info->min && *out <= info->max
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "'%.80s' is not between %s and %s", text,
                          hth_setting_format(info->kind, info->min, lo, sizeof lo),
                          hth_setting_format(info->kind, info->max, hi, sizeof hi));
}

static bool setting_is_word(const char *words, const char *text)
{
    size_t n = strlen(text);
    for (const char *p = words; *p != '\0'; p += strcspn(p, " ")) {
        p += *p == ' ';
        if (strcspn(p, " ") == n && strncmp(p, text, n) == 0) {
            return true;
        }
    }
    return false;
}

static hth_err setting_check_text(const hth_setting_info *info, const char *text)
{
    if (strlen(text) >= HTH_SETTING_TEXT) {
        return hth_fail(HTH_EINVAL, "longer than %d bytes", HTH_SETTING_TEXT - 1);
    }
    for (const char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p < ' ') {
            return hth_fail(HTH_EINVAL, "it contains a control character");
        }
    }
    if (info->kind == HTH_KIND_WORD && !setting_is_word(info->words, text)) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not one of: %s", text, info->words);
    }
    return info->kind == HTH_KIND_FILTER ? hth_log_filter_check(text) : HTH_OK;
}

static hth_err setting_put(const char *name, const char *text, bool store)
{
    int i = hth_setting_find(name);
    if (i == HTH_N_SETTINGS) {
        return setting_unknown(name);
    }
    const hth_setting_info *t = &setting_table[i];
    double v = 0;
    hth_err err = t->text != NULL ? setting_check_text(t, text) : setting_check_number(t, text, &v);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "%s", name);
    }
    if (store && hth_setting_old_name(name) != NULL) {
        hth_log(WARN, BASE, "setting-renamed",
                "'%s' is now '%s'; the old name will be removed in the next version", name,
                t->name);
    }
    if (store && t->text != NULL) {
        setting_store_text(i, text);
    } else if (store) {
        atomic_store(&setting_number[i], v);
    }
    // after the value: a reader of the count and then the values may read twice, but misses none
    atomic_fetch_add(&setting_changes, store);
    return HTH_OK;
}

hth_err hth_setting_set(const char *name, const char *text)
{
    return setting_put(name, text, true);
}

hth_err hth_setting_check(const char *name, const char *text)
{
    return setting_put(name, text, false);
}

hth_err hth_setting_given(const char *name, const char *text)
{
    return text == NULL ? HTH_OK : hth_setting_set(name, text);
}

hth_err hth_setting_get(const char *name, char *out, size_t cap)
{
    int i = hth_setting_find(name);
    char text[HTH_SETTING_TEXT];
    if (i == HTH_N_SETTINGS) {
        return setting_unknown(name);
    }
    if (setting_table[i].text != NULL) {
        snprintf(out, cap, "%s", hth_setting_text((hth_setting)i, text));
    } else {
        hth_setting_format(setting_table[i].kind, hth_setting_real((hth_setting)i), out, cap);
    }
    return HTH_OK;
}

const char *hth_setting_default(hth_setting setting, char *out, size_t cap)
{
    const hth_setting_info *t = &setting_table[setting];
    if (t->text == NULL) {
        return hth_setting_format(t->kind, t->dflt, out, cap);
    }
    snprintf(out, cap, "%s", t->text);
    return out;
}

uint64_t hth_setting_changes(void)
{
    return atomic_load(&setting_changes);
}

bool hth_setting_is_switch(hth_setting setting)
{
    const char *words = setting_table[setting].words;
    return words != NULL && strcmp(words, "false true") == 0;
}

bool hth_setting_is(hth_setting setting, const char *text)
{
    const hth_setting_info *t = &setting_table[setting];
    char now[HTH_SETTING_TEXT];
    double v;
    if (t->text != NULL) {
        return strcmp(hth_setting_text(setting, now), text) == 0;
    }
    return setting_parse(t, text, &v) == HTH_OK && v == hth_setting_real(setting);
}
