// SPDX-License-Identifier: Apache-2.0
// Events come with their fields in one text, "model=vgg version=3", which is logfmt already; what
// is a sentence instead is quoted. For JSON the fields are taken apart, numbers as numbers. A line
// is one write, so that lines of several processes on one stream stay whole.
#include "server/daemon/daemon_log.h"

#include "base/settings.h"

#include <jansson.h>

#include <ctype.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG_LINE 4096

static atomic_bool log_json;
static const char *log_process; // NULL: lines do not say

// field_next finds the next key=value at *p; false: something else is there.
static bool field_next(const char **p, int *key, const char **value, int *n)
{
    const char *s = *p;
    *key = (int)strcspn(s, "= ");
    *value = s + *key + 1;
    if (*key == 0 || s[*key] != '=') {
        return false;
    }
    *n = (int)strcspn(*value, " ");
    *p = *value + *n;
    *p += **p == ' ';
    return strcspn(*value, "\"=") >= (size_t)*n;
}

static bool text_is_fields(const char *text)
{
    int key, n;
    const char *value;
    while (*text != '\0') {
        if (!field_next(&text, &key, &value, &n)) {
            return false;
        }
    }
    return true;
}

static void line_time(const struct timespec *now, char *out, size_t cap)
{
    struct tm tm;
    gmtime_r(&now->tv_sec, &tm);
    size_t n = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, cap - n, ".%03dZ", (int)(now->tv_nsec / 1000000));
}

static void line_quote(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    for (; *text != '\0' && n + 4 < cap; text++) {
        unsigned char ch = (unsigned char)*text;
        if (ch == '"' || ch == '\\') {
            out[n++] = '\\';
        }
        out[n++] = ch < ' ' ? ' ' : (char)ch;
    }
    out[n] = '\0';
}

static json_t *field_value(const char *value, int n)
{
    char *end;
    long long v = strtoll(value, &end, 10);
    return n > 0 && end == value + n && !isspace((unsigned char)value[0])
               ? json_integer(v)
               : json_stringn(value, (size_t)n);
}

static void line_json(const hth_log_record *record, const char *time, char *out, size_t cap)
{
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:s}", "time", time, "level", hth_log_level_name(record->level),
                  "subsystem", hth_subsystem_name(record->subsystem), "event", record->event);
    if (log_process != NULL) {
        json_object_set_new(o, "process", json_string(log_process));
    }
    const char *p = record->text, *value;
    int key = 0, n = 0;
    char name[64];
    if (!text_is_fields(p)) {
        json_object_set_new(o, "message", json_string(p));
    } else {
        while (*p != '\0') {
            const char *start = p;
            field_next(&p, &key, &value, &n);
            snprintf(name, sizeof name, "%.*s", key, start);
            json_object_set_new(o, name, field_value(value, n));
        }
    }
    size_t bytes = o != NULL ? json_dumpb(o, out, cap - 1, JSON_COMPACT) : 0;
    out[bytes < cap ? bytes : 0] = '\0';
    json_decref(o);
}

void hth_daemon_log_process(const char *name)
{
    log_process = name;
}

// line_at is where a line of `cap` bytes goes on after snprintf wrote `n` bytes at `at`.
static size_t line_at(int n, size_t at, size_t cap)
{
    at += n > 0 ? (size_t)n : 0;
    return at < cap ? at : cap - 1;
}

const char *hth_daemon_log_line(const hth_log_record *record, const struct timespec *now, bool json,
                                char *out, size_t cap)
{
    char time[40], quoted[2200];
    line_time(now, time, sizeof time);
    if (json) {
        line_json(record, time, out, cap);
        return out;
    }
    int n = snprintf(out, cap, "time=%s level=%s subsystem=%s", time,
                     hth_log_level_name(record->level), hth_subsystem_name(record->subsystem));
    size_t at = line_at(n, 0, cap);
    if (log_process != NULL) {
        at = line_at(snprintf(out + at, cap - at, " process=%s", log_process), at, cap);
    }
    at = line_at(snprintf(out + at, cap - at, " event=%s", record->event), at, cap);
    if (!text_is_fields(record->text)) {
        line_quote(record->text, quoted, sizeof quoted);
        snprintf(out + at, cap - at, " message=\"%s\"", quoted);
    } else if (record->text[0] != '\0') {
        snprintf(out + at, cap - at, " %s", record->text);
    }
    return out;
}

static void log_sink(void *ctx, const hth_log_record *record)
{
    char line[LOG_LINE + 1];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hth_daemon_log_line(record, &now, atomic_load(&log_json), line, LOG_LINE);
    size_t n = strlen(line);
    line[n] = '\n';
    if (write(STDERR_FILENO, line, n + 1) < 0) {
        return; // nobody is left who could be told
    }
}

void hth_daemon_log_open(void)
{
    char text[HTH_SETTING_TEXT], filter[HTH_SETTING_TEXT + 8];
    atomic_store(&log_json, strcmp(hth_setting_text(HTH_SET_LOG_FORMAT, text), "json") == 0);
    // over the default, so that the result does not depend on what was set before
    snprintf(filter, sizeof filter, "warn,%s", hth_setting_text(HTH_SET_LOG_LEVEL, text));
    hth_log_filter(filter);
    hth_log_sink(log_sink, NULL);
}
