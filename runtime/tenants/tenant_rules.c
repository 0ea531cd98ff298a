// SPDX-License-Identifier: Apache-2.0
#include "runtime/tenants/tenant_rules.h"

#include "base/alloc.h"
#include "base/opener.h"
#include "base/settings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RULES_BYTES  (1 << 20)
#define RULES_LINE   512
#define RULES_WEIGHT 1e6 // largest; the least is one divided by it
#define RULES_COUNT  1e9

static const hth_tenant_limits rules_none = {
    1, HTH_TENANT_NEVER, HTH_TENANT_NEVER, HTH_TENANT_NEVER, HTH_TENANT_NEVER, HTH_TENANT_NEVER};

static hth_err rule_number(const char *word, const char *text, double least, double most,
                           double *out)
{
    char *end;
    *out = strtod(text, &end);
    return *text != 0 && *end == 0 && *out >= least && *out <= most
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%s=%.40s: not a number from %g to %g", word, text, least,
                          most);
}

static hth_err rule_count(const char *word, const char *text, int64_t *out)
{
    double v;
    HTH_TRY(rule_number(word, text, 0, RULES_COUNT, &v));
    *out = (int64_t)v;
    return v == floor(v) ? HTH_OK
                         : hth_fail(HTH_EINVAL, "%s=%.40s: not a whole number", word, text);
}

static hth_err rule_memory(const char *text, int64_t *out)
{
    uint64_t bytes;
    HTH_TRY(hth_parse_size(text, 0, &bytes));
    *out = bytes < (uint64_t)HTH_TENANT_NEVER ? (int64_t)bytes : HTH_TENANT_NEVER;
    return HTH_OK;
}

static hth_err rule_word(char *word, hth_tenant_limits *limits)
{
    char *value = strchr(word, '=');
    if (value != NULL) {
        *value++ = 0;
        if (strcmp(word, "weight") == 0) {
            return rule_number(word, value, 1 / RULES_WEIGHT, RULES_WEIGHT, &limits->weight);
        }
        if (strcmp(word, "memory") == 0) {
            return rule_memory(value, &limits->memory_bytes);
        }
        if (strcmp(word, "uploads") == 0) {
            return rule_memory(value, &limits->upload_bytes);
        }
        if (strcmp(word, "waiting") == 0) {
            return rule_count(word, value, &limits->waiting);
        }
        if (strcmp(word, "jobs") == 0) {
            return rule_count(word, value, &limits->jobs);
        }
        if (strcmp(word, "store") == 0) {
            return rule_memory(value, &limits->store_bytes);
        }
    }
    return hth_fail(
        HTH_EINVAL,
        "'%.40s' is not one of weight=N, memory=SIZE, waiting=N, jobs=N, uploads=SIZE, store=SIZE",
        word);
}

// rule_parse reads a line; *rule has no name when nothing stands in it.
static hth_err rule_parse(char *line, hth_tenant_rule *rule)
{
    char *rest = NULL, *word = strtok_r(line, " \t\r", &rest);
    *rule = (hth_tenant_rule){.limits = rules_none};
    if (word == NULL || word[0] == '#') {
        return HTH_OK;
    }
    if (strlen(word) >= HTH_TENANT || strchr(word, '=') != NULL) {
        return hth_fail(HTH_EINVAL, "'%.80s' is not a tenant's name", word);
    }
    strcpy(rule->name, word);
    while ((word = strtok_r(NULL, " \t\r", &rest)) != NULL && word[0] != '#') {
        HTH_TRY(rule_word(word, &rule->limits));
    }
    return HTH_OK;
}

static hth_err rules_add(hth_tenant_rules *out, int *cap, char *line)
{
    hth_tenant_rule rule;
    HTH_TRY(rule_parse(line, &rule));
    if (rule.name[0] == 0) {
        return HTH_OK;
    }
    for (int i = 0; i < out->n; i++) {
        if (strcmp(out->list[i].name, rule.name) == 0) {
            return hth_fail(HTH_EINVAL, "'%s' has two lines", rule.name);
        }
    }
    if (HTH_GROW(out->list, out->n, *cap) != 0) {
        return hth_no_memory("tenants");
    }
    out->list[out->n++] = rule;
    return HTH_OK;
}

hth_err hth_tenant_rules_parse(const char *text, size_t n, hth_tenant_rules *out)
{
    char line[RULES_LINE];
    int cap = 0, number = 1;
    *out = (hth_tenant_rules){NULL, 0};
    for (const char *p = text, *all = text + n; p < all; number++) {
        const char *end = memchr(p, '\n', (size_t)(all - p));
        end = end != NULL ? end : all;
        size_t bytes = (size_t)(end - p);
        hth_err err = HTH_OK;
        if (bytes >= sizeof line || memchr(p, 0, bytes) != NULL) {
            err = hth_fail(HTH_EINVAL, "longer than %d bytes, or with a zero byte", RULES_LINE - 1);
        } else {
            memcpy(line, p, bytes);
            line[bytes] = 0;
            err = rules_add(out, &cap, line);
        }
        if (err != HTH_OK) {
            hth_tenant_rules_fini(out);
            return err == HTH_ENOMEM ? err : hth_err_prefix(err, "line %d", number);
        }
        p = end + 1;
    }
    return HTH_OK;
}

hth_err hth_tenant_rules_read(const char *path, hth_tenant_rules *out)
{
    *out = (hth_tenant_rules){NULL, 0};
    if (path[0] == 0) {
        return HTH_OK;
    }
    void *text;
    size_t n;
    hth_file f;
    HTH_TRY(hth_open_data(path, &f));
    hth_err err = hth_file_load_open(&f, path, RULES_BYTES, &text, &n);
    hth_file_close(&f);
    HTH_TRY(err);
    err = hth_tenant_rules_parse(text, n, out);
    hth_free(text);
    return hth_err_prefix(err, "%s", path);
}

void hth_tenant_rules_fini(hth_tenant_rules *rules)
{
    hth_free(rules->list);
    *rules = (hth_tenant_rules){NULL, 0};
}

hth_tenant_limits hth_tenant_rules_of(const hth_tenant_rules *rules, const char *name)
{
    hth_tenant_limits all = rules_none;
    for (int i = 0; i < rules->n; i++) {
        if (strcmp(rules->list[i].name, name) == 0) {
            return rules->list[i].limits;
        }
        all = strcmp(rules->list[i].name, "*") == 0 ? rules->list[i].limits : all;
    }
    return all;
}
