// SPDX-License-Identifier: Apache-2.0
#include "runtime/redact.h"

#include "base/alloc.h"

#include <jansson.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// path_begins tells whether a path of this machine begins at p: an absolute one, one of the store's
// own, or a socket's.
static bool path_begins(const char *p)
{
    static const char *const own[] = {"tensors/", "ipc://"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strncmp(p, own[i], strlen(own[i])) == 0) {
            return true;
        }
    }
    return p[0] == '/' && (isalnum((unsigned char)p[1]) || strchr("._~-/", p[1]) != NULL) &&
           p[1] != 0;
}

static size_t address_bytes(const char *p)
{
    size_t n = strncmp(p, "0x", 2) == 0 ? strspn(p + 2, "0123456789abcdefABCDEF") : 0;
    return n >= 6 ? n + 2 : 0;
}

// word_bytes is how far a path goes that begins after `quote`: to the same quote, or to the end of
// the word.
static size_t word_bytes(const char *p, char quote)
{
    size_t n = quote == '\'' || quote == '"' ? strcspn(p, (char[]){quote, 0}) : 0;
    return n > 0 && p[n] != 0 ? n : strcspn(p, " ,;()'\"");
}

void hth_redact(const char *sentence, char *out, size_t cap)
{
    size_t n = 0;
    char before = ' ';
    for (const char *p = sentence; *p != 0 && n + 16 < cap;) {
        bool begins = strchr(" '\"(=:,", before) != NULL;
        size_t path = begins && path_begins(p) ? word_bytes(p, before) : 0;
        size_t address = begins && path == 0 ? address_bytes(p) : 0, skip = path + address;
        if (skip > 0) {
            const char *word = path > 0 ? "(path)" : "(address)";
            memcpy(out + n, word, strlen(word));
            n += strlen(word);
            before = 'x';
            p += skip;
            continue;
        }
        before = *p;
        out[n++] = *p++;
    }
    out[n] = 0;
}

static bool key_tells(const char *key)
{
    static const char *const keys[] = {"why",   "error", "reason",  "data",  "eval",
                                       "start", "spill", "profile", "trace", "out",
                                       "path",  "file",  "problem", "text"};
    size_t i = 0;
    while (i < sizeof keys / sizeof keys[0] && strcmp(keys[i], key) != 0) {
        i++;
    }
    return i < sizeof keys / sizeof keys[0];
}

static void jobs_clear(json_t *json)
{
    const char *key;
    char cleared[1024];
    size_t i;
    json_t *part;
    json_array_foreach(json, i, part)
    {
        jobs_clear(part);
    }
    json_object_foreach(json, key, part)
    {
        const char *value = json_is_string(part) && key_tells(key) ? json_string_value(part) : NULL;
        if (value != NULL) {
            hth_redact(value, cleared, sizeof cleared);
            bool path = value[0] == '/' && strcmp(key, "why") != 0 && strcmp(key, "error") != 0 &&
                        strcmp(key, "reason") != 0;
            json_string_set(part, path ? "(path)" : cleared);
        } else {
            jobs_clear(part);
        }
    }
}

char *hth_redact_jobs(const char *json)
{
    json_t *doc = json_loads(json, JSON_DECODE_ANY, NULL);
    jobs_clear(doc);
    char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    char *out = text != NULL ? hth_strdup(text) : NULL;
    free(text);
    json_decref(doc);
    return out;
}
