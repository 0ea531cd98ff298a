// SPDX-License-Identifier: Apache-2.0
// Aliases: texts of the index, "alias/NAME" -> "MODEL" or "MODEL:VERSION". Moving one is one
// transaction, which also increments the change count, so that engines notice it. Both puts and
// alias_set compare the names of models and aliases, under the index's single writer.
#include "modelstore/store_impl.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIAS_PREFIX "alias/"
#define ALIAS_TEXT   (sizeof ALIAS_PREFIX + HTH_STORE_NAME_MAX)

typedef struct alias_job {
    const hth_store_alias *set;
    const char *name;
    hth_store_alias *before, *list;
    int n, cap;
    char text[400]; // of the sentence about what exists
} alias_job;

hth_alias_text hth_alias_target(const hth_store_alias *alias)
{
    hth_alias_text t = {""};
    hth_store_alias_target(alias, t.text);
    return t;
}

void hth_store_alias_target(const hth_store_alias *alias, char text[HTH_STORE_TARGET])
{
    if (alias->version > 0) {
        snprintf(text, HTH_STORE_TARGET, "%s:%d", alias->name, alias->version);
    } else {
        snprintf(text, HTH_STORE_TARGET, "%s", alias->name);
    }
}

static size_t alias_key(const char *name, char key[ALIAS_TEXT])
{
    return (size_t)snprintf(key, ALIAS_TEXT, ALIAS_PREFIX "%s", name);
}

// alias_parse reads the row of an alias.
static hth_err alias_parse(const char *alias, size_t alias_bytes, const MDB_val *value,
                           hth_store_alias *out)
{
    const char *text = value->mv_data, *end = text + value->mv_size;
    const char *colon = memchr(text, ':', value->mv_size);
    size_t n = colon != NULL ? (size_t)(colon - text) : value->mv_size;
    int64_t version = 0;
    *out = (hth_store_alias){.version = 0};
    if (n == 0 || n > HTH_STORE_NAME_MAX || alias_bytes > HTH_STORE_NAME_MAX) {
        return hth_fail(HTH_ECORRUPT, "the store's list of aliases is damaged");
    }
    memcpy(out->alias, alias, alias_bytes);
    memcpy(out->name, text, n);
    for (const char *p = colon != NULL ? colon + 1 : end; p < end && version <= INT32_MAX; p++) {
        version = version * 10 + (*p >= '0' && *p <= '9' ? *p - '0' : 0);
    }
    out->version = version <= INT32_MAX ? (int)version : INT32_MAX;
    return HTH_OK;
}

hth_err hth_alias_find(hth_txn *txn, const char *alias, hth_store_alias *out)
{
    char key[ALIAS_TEXT];
    MDB_val v;
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_TEXTS, key, alias_key(alias, key), &v));
    return alias_parse(alias, strlen(alias), &v, out);
}

hth_err hth_alias_taken(hth_txn *txn, const char *name)
{
    hth_store_alias a;
    hth_err err = hth_alias_find(txn, name, &a);
    if (err == HTH_OK) {
        return hth_fail(HTH_EEXIST, "'%s' is an alias of '%s', and no new model can have that name",
                        name, hth_alias_target(&a).text);
    }
    return err == HTH_ENOENT ? HTH_OK : err;
}

// ---- all of them

typedef hth_err (*alias_fn)(const hth_store_alias *alias, void *ctx);

typedef struct alias_walk {
    alias_fn each;
    void *ctx;
} alias_walk;

static hth_err alias_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    const alias_walk *w = ctx;
    const size_t prefix = sizeof ALIAS_PREFIX - 1;
    hth_store_alias a;
    if (key->mv_size <= prefix || memcmp(key->mv_data, ALIAS_PREFIX, prefix) != 0) {
        return HTH_ECANCELED; // other texts begin
    }
    HTH_TRY(alias_parse((const char *)key->mv_data + prefix, key->mv_size - prefix, value, &a));
    return w->each(&a, w->ctx);
}

static hth_err alias_each(hth_txn *txn, alias_fn each, void *ctx)
{
    alias_walk w = {each, ctx};
    hth_err err =
        hth_txn_each(txn, HTH_TABLE_TEXTS, ALIAS_PREFIX, sizeof ALIAS_PREFIX - 1, alias_row, &w);
    return err == HTH_ECANCELED ? HTH_OK : err;
}

typedef struct alias_need {
    const char *name;
    int version, left;
} alias_need;

static hth_err alias_needs(const hth_store_alias *alias, void *ctx)
{
    const alias_need *n = ctx;
    bool needs =
        strcmp(alias->name, n->name) == 0 &&
        (n->version == 0 || alias->version == n->version || (alias->version == 0 && n->left == 0));
    return needs ? hth_fail(HTH_EBUSY,
                            "'%s' is the target of the alias '%s': move the alias (hearth alias %s "
                            "NAME) or remove it (hearth alias --rm %s) first",
                            hth_alias_target(alias).text, alias->alias, alias->alias, alias->alias)
                 : HTH_OK;
}

hth_err hth_alias_needs(hth_txn *txn, const char *name, int version, int left)
{
    hth_store_alias a;
    if (hth_alias_find(txn, name, &a) == HTH_OK) {
        return hth_fail(HTH_EINVAL, "'%s' is an alias: hearth alias --rm %s removes it", name,
                        name);
    }
    return alias_each(txn, alias_needs, &(alias_need){name, version, left});
}

static hth_err alias_add(const hth_store_alias *alias, void *ctx)
{
    alias_job *j = ctx;
    if (HTH_GROW(j->list, j->n, j->cap) != 0) {
        return hth_no_memory("listing the store");
    }
    j->list[j->n++] = *alias;
    return HTH_OK;
}

static hth_err alias_list(hth_txn *txn, void *ctx)
{
    ((alias_job *)ctx)->n = 0; // of an earlier try
    return alias_each(txn, alias_add, ctx);
}

hth_err hth_store_alias_list(hth_store *store, hth_store_alias **out, int *n)
{
    alias_job j = {.n = 0};
    hth_err err = hth_index_read(&store->index, alias_list, &j);
    if (err != HTH_OK) {
        hth_free(j.list);
        j = (alias_job){.n = 0};
    }
    *out = j.list;
    *n = j.n;
    return err;
}

// ---- one of them, for each request

// alias_slot is where an alias is kept between two commits (FNV-1a).
static hth_recent_alias *alias_slot(hth_store *store, const char *alias)
{
    uint32_t h = 2166136261u;
    for (const char *p = alias; *p != 0; p++) {
        h = (h ^ (unsigned char)*p) * 16777619u;
    }
    return &store->recent.alias[(h ^ h >> 16) % HTH_STORE_RECENT];
}

static hth_err alias_get(hth_txn *txn, void *ctx)
{
    hth_recent_alias *found = ctx;
    char alias[sizeof found->alias.alias];
    strcpy(alias, found->alias.alias);
    hth_err err = hth_alias_find(txn, alias, &found->alias);
    if (err == HTH_ENOENT) {
        found->alias = (hth_store_alias){.version = 0};
        strcpy(found->alias.alias, alias);
    }
    found->commit = hth_txn_seen(txn);
    return err == HTH_ENOENT ? HTH_OK : err;
}

// alias_known stores what the slot has of found's commit and alias, if it has.
static bool alias_known(hth_store *store, const hth_recent_alias *slot, hth_recent_alias *found)
{
    pthread_mutex_lock(&store->recent.lock);
    bool known = found->commit != 0 && found->commit == slot->commit &&
                 strcmp(found->alias.alias, slot->alias.alias) == 0;
    if (known) {
        found->alias = slot->alias;
    }
    pthread_mutex_unlock(&store->recent.lock);
    return known;
}

hth_err hth_store_alias_get(hth_store *store, const char *alias, hth_store_alias *out)
{
    hth_recent_alias found = {.commit = hth_index_commit(&store->index)};
    if (strnlen(alias, HTH_STORE_NAME_MAX + 1) > HTH_STORE_NAME_MAX) {
        return HTH_ENOENT;
    }
    hth_recent_alias *slot = alias_slot(store, alias);
    strcpy(found.alias.alias, alias);
    if (!alias_known(store, slot, &found)) {
        HTH_TRY(hth_index_read(&store->index, alias_get, &found));
        pthread_mutex_lock(&store->recent.lock);
        *slot = found;
        pthread_mutex_unlock(&store->recent.lock);
    }
    if (found.alias.name[0] == 0) {
        return HTH_ENOENT;
    }
    *out = found.alias;
    return HTH_OK;
}

static hth_err alias_free(hth_txn *txn, void *ctx)
{
    return hth_alias_taken(txn, ((alias_job *)ctx)->name);
}

hth_err hth_store_alias_free(hth_store *store, const char *name)
{
    HTH_TRY(hth_store_check_name(name));
    return hth_index_read(&store->index, alias_free, &(alias_job){.name = name});
}

// ---- changes

// alias_target_there checks that the target exists and is a model.
static hth_err alias_target_there(hth_txn *txn, const hth_store_alias *alias)
{
    hth_store_alias other;
    MDB_val v;
    int last;
    hth_version_key key = hth_version_key_of(alias->name, alias->version);
    if (hth_alias_find(txn, alias->name, &other) == HTH_OK) {
        return hth_fail(HTH_EINVAL, "'%s' is itself an alias, of '%s': use that name", alias->name,
                        hth_alias_target(&other).text);
    }
    HTH_TRY(hth_store_last(txn, alias->name, &last));
    hth_err err = last == 0 ? HTH_ENOENT : HTH_OK;
    if (err == HTH_OK && alias->version > 0) {
        err = hth_txn_get(txn, HTH_TABLE_VERSIONS, key.text, key.bytes, &v);
    }
    if (err == HTH_ENOENT) {
        err = hth_versions_absent(txn, alias->name, alias->version, last);
        return hth_err_prefix(err, "the alias '%s'", alias->alias);
    }
    return err;
}

static hth_err alias_set(hth_txn *txn, void *ctx)
{
    const alias_job *j = ctx;
    const hth_store_alias *a = j->set;
    char key[ALIAS_TEXT];
    hth_alias_text target = hth_alias_target(a);
    int last;
    HTH_TRY(hth_store_last(txn, a->alias, &last));
    if (last > 0) {
        return hth_fail(HTH_EEXIST, "there is a model '%s': an alias needs another name", a->alias);
    }
    HTH_TRY(alias_target_there(txn, a));
    hth_err err = hth_alias_find(txn, a->alias, j->before);
    if (err != HTH_OK && err != HTH_ENOENT) {
        return err;
    }
    HTH_TRY(hth_txn_put(txn, HTH_TABLE_TEXTS, key, alias_key(a->alias, key), target.text,
                        strlen(target.text)));
    return hth_store_changed(txn);
}

hth_err hth_store_alias_set(hth_store *store, const hth_store_alias *alias, hth_store_alias *before)
{
    hth_store_alias was = {.version = 0};
    HTH_TRY(hth_store_check_new(alias->alias));
    HTH_TRY(hth_store_check_name(alias->name));
    HTH_TRY(hth_index_write(&store->index, alias_set, &(alias_job){.set = alias, .before = &was}));
    hth_log(INFO, STORE, "alias", "alias=%s model=%s before=%s", alias->alias,
            hth_alias_target(alias).text, hth_alias_target(&was).text);
    if (before != NULL) {
        *before = was;
    }
    return HTH_OK;
}

static hth_err alias_say(const hth_store_alias *alias, void *ctx)
{
    alias_job *j = ctx;
    size_t n = strlen(j->text);
    if (sizeof j->text - n > strlen(alias->alias) + 3) {
        snprintf(j->text + n, sizeof j->text - n, "%s%s", n > 0 ? ", " : "", alias->alias);
    }
    return HTH_OK;
}

static hth_err alias_rm(hth_txn *txn, void *ctx)
{
    alias_job *j = ctx;
    char key[ALIAS_TEXT];
    hth_store_alias a;
    hth_err err = hth_alias_find(txn, j->name, &a);
    if (err == HTH_ENOENT) {
        j->text[0] = 0;
        HTH_TRY(alias_each(txn, alias_say, j));
        return hth_fail(HTH_ENOENT, "there is no alias '%s'; there are: %s", j->name,
                        j->text[0] != 0 ? j->text : "none");
    }
    HTH_TRY(err);
    HTH_TRY(hth_txn_del(txn, HTH_TABLE_TEXTS, key, alias_key(j->name, key)));
    return hth_store_changed(txn);
}

hth_err hth_store_alias_rm(hth_store *store, const char *alias)
{
    HTH_TRY(hth_store_check_name(alias));
    HTH_TRY(hth_index_write(&store->index, alias_rm, &(alias_job){.name = alias}));
    hth_log(INFO, STORE, "alias-removed", "alias=%s", alias);
    return HTH_OK;
}
