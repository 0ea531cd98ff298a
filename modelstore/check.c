// SPDX-License-Identifier: Apache-2.0
// Marks outlive the process that found them; that a file is right is worth a write only now and
// then, so many of them are written together.
#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/stats.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define CHECK_DAY_NS ((uint64_t)86400 * 1000000000u)

struct hth_memo {
    hth_id id;
    hth_object_seen seen;
    uint64_t checked_ns;
    bool damaged, dirty; // dirty: the index does not know
    UT_hash_handle hh;
};

static _Atomic uint64_t check_wall_ns;

uint64_t hth_store_wall_ns(void)
{
    uint64_t still = atomic_load(&check_wall_ns);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return still != 0 ? still : (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void hth_store_wall_set(uint64_t ns)
{
    atomic_store(&check_wall_ns, ns);
}

// ---- rows

typedef struct check_key {
    char text[1 + sizeof(hth_version_key)];
    size_t bytes;
} check_key;

static check_key check_tensor_key(const hth_id *id)
{
    check_key k = {.text = "T", .bytes = 1 + sizeof *id};
    memcpy(k.text + 1, id, sizeof *id);
    return k;
}

static check_key check_version_key(const hth_version_key *key)
{
    check_key k = {.text = "V", .bytes = 1 + key->bytes};
    memcpy(k.text + 1, key->text, key->bytes);
    return k;
}

// check_read reads a value of `bytes` bytes. One of another size is damaged, and as good as none:
// what it says can be found out again.
static hth_err check_read(hth_txn *txn, hth_table table, const void *key, size_t key_bytes,
                          void *out, size_t bytes)
{
    MDB_val v;
    HTH_TRY(hth_txn_get(txn, table, key, key_bytes, &v));
    if (v.mv_size != bytes) {
        return HTH_ENOENT;
    }
    memcpy(out, v.mv_data, bytes);
    return HTH_OK;
}

hth_err hth_check_get(hth_txn *txn, const hth_id *id, hth_check_row *out)
{
    check_key k = check_tensor_key(id);
    return check_read(txn, HTH_TABLE_CHECKS, k.text, k.bytes, out, sizeof *out);
}

hth_err hth_check_health_get(hth_txn *txn, hth_check_health *out)
{
    *out = (hth_check_health){.damaged = 0};
    hth_err err = check_read(txn, HTH_TABLE_INFO, "health", 6, out, sizeof *out);
    return err == HTH_ENOENT ? HTH_OK : err;
}

static hth_err check_health_add(hth_txn *txn, int damaged, int events)
{
    hth_check_health h;
    HTH_TRY(hth_check_health_get(txn, &h));
    h.damaged = damaged < 0 && h.damaged == 0 ? 0 : h.damaged + (uint64_t)(int64_t)damaged;
    h.events += (uint64_t)events;
    return hth_txn_put(txn, HTH_TABLE_INFO, "health", 6, &h, sizeof h);
}

hth_err hth_check_event(hth_txn *txn)
{
    HTH_TRY(check_health_add(txn, 0, 1));
    return hth_store_changed(txn);
}

static hth_err check_was_damaged(hth_txn *txn, const hth_id *id, bool *damaged)
{
    hth_check_row row;
    hth_err err = hth_check_get(txn, id, &row);
    *damaged = err == HTH_OK && row.damaged != 0;
    return err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_check_put(hth_txn *txn, const hth_id *id, const hth_check_row *row)
{
    check_key k = check_tensor_key(id);
    bool was;
    HTH_TRY(check_was_damaged(txn, id, &was));
    if (was != (row->damaged != 0)) {
        HTH_TRY(check_health_add(txn, was ? -1 : 1, 0));
    }
    return hth_txn_put(txn, HTH_TABLE_CHECKS, k.text, k.bytes, row, sizeof *row);
}

hth_err hth_check_del(hth_txn *txn, const hth_id *id)
{
    check_key k = check_tensor_key(id);
    bool was;
    HTH_TRY(check_was_damaged(txn, id, &was));
    HTH_TRY(was ? check_health_add(txn, -1, 0) : HTH_OK);
    return hth_txn_del(txn, HTH_TABLE_CHECKS, k.text, k.bytes);
}

hth_record_sum hth_check_sum(const void *record, size_t bytes)
{
    hth_record_sum s = {.created_ns = 0};
    size_t head = bytes < HTH_RECORD_CREATED_BYTES ? bytes : HTH_RECORD_CREATED_BYTES;
    memcpy(&s.created_ns, record, head);
    s.sum = hth_id_of(&(hth_chunk){(const char *)record + head, bytes - head}, 1);
    return s;
}

hth_err hth_check_sum_put(hth_txn *txn, const hth_version_key *key, const void *record,
                          size_t bytes)
{
    check_key k = check_version_key(key);
    hth_record_sum s = hth_check_sum(record, bytes);
    return hth_txn_put(txn, HTH_TABLE_CHECKS, k.text, k.bytes, &s, sizeof s);
}

hth_err hth_check_sum_get(hth_txn *txn, const hth_version_key *key, hth_record_sum *out)
{
    check_key k = check_version_key(key);
    return check_read(txn, HTH_TABLE_CHECKS, k.text, k.bytes, out, sizeof *out);
}

hth_err hth_check_sum_del(hth_txn *txn, const hth_version_key *key)
{
    check_key k = check_version_key(key);
    return hth_txn_del(txn, HTH_TABLE_CHECKS, k.text, k.bytes);
}

hth_err hth_check_record(hth_txn *txn, const hth_version_key *key, const MDB_val *record)
{
    hth_record_sum want, have;
    hth_err err = hth_check_sum_get(txn, key, &want);
    if (err != HTH_OK) {
        return err == HTH_ENOENT ? HTH_OK : err;
    }
    have = hth_check_sum(record->mv_data, record->mv_size);
    return have.created_ns == want.created_ns && hth_id_equal(&have.sum, &want.sum)
               ? HTH_OK
               : hth_fail(HTH_ECORRUPT,
                          "its record in the store's index (graph, names, list of tensors) is not "
                          "the one that was stored");
}

hth_err hth_scrub_state_get(hth_txn *txn, hth_scrub_state *out)
{
    *out = (hth_scrub_state){.passed_ns = 0};
    hth_err err = check_read(txn, HTH_TABLE_INFO, "scrub", 5, out, sizeof *out);
    return err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_scrub_state_put(hth_txn *txn, const hth_scrub_state *state)
{
    return hth_txn_put(txn, HTH_TABLE_INFO, "scrub", 5, state, sizeof *state);
}

// ---- records without a sum

typedef struct check_sums {
    hth_version_key *key;
    int n, cap;
} check_sums;

static hth_err check_sum_lacks(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    check_sums *l = ctx;
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    hth_record_sum sum;
    if (hth_version_key_parse(key, name, &version) != HTH_OK) {
        return HTH_OK;
    }
    hth_version_key k = hth_version_key_of(name, version);
    hth_err err = hth_check_sum_get(txn, &k, &sum);
    if (err == HTH_ENOENT) {
        err = HTH_GROW(l->key, l->n, l->cap) == 0 ? HTH_OK : hth_no_memory("a list of versions");
        if (err == HTH_OK) {
            l->key[l->n++] = k;
        }
    }
    return err;
}

static hth_err check_sums_list(hth_txn *txn, void *ctx)
{
    ((check_sums *)ctx)->n = 0;
    return hth_txn_each(txn, HTH_TABLE_VERSIONS, NULL, 0, check_sum_lacks, ctx);
}

static hth_err check_sums_put(hth_txn *txn, void *ctx)
{
    const check_sums *l = ctx;
    for (int i = 0; i < l->n; i++) {
        MDB_val v;
        hth_err err = hth_txn_get(txn, HTH_TABLE_VERSIONS, l->key[i].text, l->key[i].bytes, &v);
        void *copy = err == HTH_OK ? hth_memdup(v.mv_data, v.mv_size) : NULL;
        if (err == HTH_OK && copy != NULL) { // the map changes underneath
            err = hth_check_sum_put(txn, &l->key[i], copy, v.mv_size);
        }
        hth_free(copy);
        if (err != HTH_OK && err != HTH_ENOENT) { // removed meanwhile
            return err;
        }
    }
    return HTH_OK;
}

hth_err hth_check_sums_fill(hth_store *store)
{
    check_sums l = {.n = 0};
    hth_err err = hth_index_read(&store->index, check_sums_list, &l);
    if (err == HTH_OK && l.n > 0 && !store->read_only) {
        err = hth_index_write(&store->index, check_sums_put, &l);
    }
    hth_free(l.key);
    return err;
}

// ---- what was found

typedef struct check_mark {
    const hth_store *s;
    const hth_id *id;
    hth_check_row row;
    bool there;
} check_mark;

// check_is_news tells whether the store has the tensor, in the file that was seen: another process
// may have written to that since, and marked it, or repaired it.
static bool check_is_news(hth_txn *txn, const hth_store *store, const hth_id *id,
                          const hth_object_seen *seen)
{
    hth_tensor_row tensor;
    hth_object_seen now;
    if (hth_store_row(txn, id, &tensor) != HTH_OK) {
        return false;
    }
    (void)hth_object_look(store, id, tensor.bytes, &now);
    return hth_object_same(&now, seen);
}

static hth_err check_mark_write(hth_txn *txn, void *ctx)
{
    const check_mark *m = ctx;
    bool was;
    if (!check_is_news(txn, m->s, m->id, &m->row.seen)) {
        return HTH_OK;
    }
    HTH_TRY(check_was_damaged(txn, m->id, &was));
    HTH_TRY(hth_check_put(txn, m->id, &m->row));
    return was ? HTH_OK : hth_check_event(txn);
}

// check_mark_look finds out whether the index has the mark.
static hth_err check_mark_look(hth_txn *txn, void *ctx)
{
    check_mark *m = ctx;
    hth_check_row row;
    m->there = hth_check_get(txn, m->id, &row) == HTH_OK && row.damaged &&
               hth_object_same(&row.seen, &m->row.seen);
    return HTH_OK;
}

// check_remember keeps it in the process; returns whether that is news.
static bool check_remember(hth_store *store, const hth_id *id, const hth_object_seen *seen,
                           uint64_t now, bool damaged)
{
    hth_memo *m;
    pthread_mutex_lock(&store->memo_lock);
    HASH_FIND(hh, store->memo, id, sizeof *id, m);
    bool news = m == NULL || m->damaged != damaged || !hth_object_same(&m->seen, seen);
    if (m == NULL && (m = hth_calloc(1, sizeof *m)) != NULL) {
        m->id = *id;
        HASH_ADD(hh, store->memo, id, sizeof m->id, m);
        if (!HTH_HASH_ADDED(m)) {
            hth_free(m);
            m = NULL; // it is read again the next time
        }
    }
    if (m != NULL) {
        m->seen = *seen;
        m->checked_ns = now;
        m->damaged = damaged;
        m->dirty = !damaged;
    }
    pthread_mutex_unlock(&store->memo_lock);
    return news;
}

void hth_check_found(hth_store *store, const hth_id *id, const hth_object_seen *seen, bool damaged)
{
    char detail[1024]; // the sentence of what was found is the caller's to give
    uint64_t now = hth_store_wall_ns();
    check_mark m = {store, id, {.checked_ns = now, .seen = *seen, .damaged = damaged}, false};
    bool news = check_remember(store, id, seen, now, damaged);
    if (!damaged) {
        return;
    }
    hth_path path = hth_path_of_tensor(id);
    strncpy(detail, hth_err_detail(), sizeof detail - 1);
    detail[sizeof detail - 1] = 0;
    if (news) {
        hth_stat_add(HTH_STAT_STORE_DAMAGED, 1);
        hth_log(ERROR, STORE, "damaged", "file=%s: %s", path.text, detail);
    }
    bool kept = !store->read_only &&
                ((hth_index_read(&store->index, check_mark_look, &m) == HTH_OK && m.there) ||
                 hth_index_write(&store->index, check_mark_write, &m) == HTH_OK);
    if (!kept && news) {
        hth_log(WARN, STORE, "damaged-not-marked", "file=%s", path.text);
    }
    (void)hth_fail(HTH_ECORRUPT, "%s", detail);
}

typedef struct check_row_of {
    hth_id id;
    hth_check_row row;
} check_row_of;

typedef struct check_rows {
    const hth_store *s;
    check_row_of *row;
    int n, cap;
} check_rows;

// check_marked_since tells whether another process has found the same file damaged after it was
// read here.
static bool check_marked_since(hth_txn *txn, const check_row_of *r)
{
    hth_check_row row;
    return hth_check_get(txn, &r->id, &row) == HTH_OK && row.damaged &&
           row.checked_ns > r->row.checked_ns && hth_object_same(&row.seen, &r->row.seen);
}

static hth_err check_flush(hth_txn *txn, void *ctx)
{
    const check_rows *rows = ctx;
    for (int i = 0; i < rows->n; i++) {
        const check_row_of *r = &rows->row[i];
        if (check_is_news(txn, rows->s, &r->id, &r->row.seen) && !check_marked_since(txn, r)) {
            HTH_TRY(hth_check_put(txn, &r->id, &r->row));
        }
    }
    return HTH_OK;
}

// check_take takes the rows that the index does not know; those that it then cannot be told are
// found out again by the next process.
static void check_take(hth_store *store, check_rows *rows)
{
    pthread_mutex_lock(&store->memo_lock);
    for (hth_memo *m = store->memo; m != NULL; m = m->hh.next) {
        if (m->dirty && HTH_GROW(rows->row, rows->n, rows->cap) == 0) {
            rows->row[rows->n++] =
                (check_row_of){m->id, {.checked_ns = m->checked_ns, .seen = m->seen}};
            m->dirty = false;
        }
    }
    pthread_mutex_unlock(&store->memo_lock);
}

void hth_check_flush(hth_store *store)
{
    check_rows rows = {.s = store};
    check_take(store, &rows);
    if (rows.n > 0 && !store->read_only &&
        hth_index_write(&store->index, check_flush, &rows) != HTH_OK) {
        hth_log(WARN, STORE, "checks-not-kept", "%s", hth_err_detail());
    }
    hth_free(rows.row);
}

void hth_check_forget(hth_store *store)
{
    hth_memo *m, *next;
    HASH_ITER (hh, store->memo, m, next) {
        HASH_DEL(store->memo, m);
        hth_free(m);
    }
}

// ---- whether to read

typedef struct check_look {
    const hth_id *id;
    hth_check_row row;
    bool known;
} check_look;

static hth_err check_look_up(hth_txn *txn, void *ctx)
{
    check_look *l = ctx;
    hth_err err = hth_check_get(txn, l->id, &l->row);
    l->known = err == HTH_OK;
    return err == HTH_ENOENT ? HTH_OK : err;
}

// check_recent tells whether a file was read within store.scrub_days.
static bool check_recent(uint64_t checked_ns)
{
    uint64_t days = (uint64_t)hth_setting_int(HTH_SET_STORE_SCRUB_DAYS);
    uint64_t now = hth_store_wall_ns();
    return days == 0 || (checked_ns <= now && now - checked_ns <= days * CHECK_DAY_NS);
}

static hth_err check_needed(hth_store *store, const hth_id *id, const hth_object_seen *seen,
                            bool *needed)
{
    char word[HTH_SETTING_TEXT];
    check_look l = {.id = id};
    hth_memo *m;
    HTH_TRY(hth_index_read(&store->index, check_look_up, &l));
    pthread_mutex_lock(&store->memo_lock);
    HASH_FIND(hh, store->memo, id, sizeof *id, m);
    bool here = m != NULL && hth_object_same(&m->seen, seen);
    bool damaged = here && m->damaged;
    bool recent = here && !m->damaged && check_recent(m->checked_ns);
    pthread_mutex_unlock(&store->memo_lock);
    bool known = l.known && hth_object_same(&l.row.seen, seen);
    if (damaged || (known && l.row.damaged)) {
        hth_path path = hth_path_of_tensor(id);
        return hth_fail(HTH_ECORRUPT, "its file '%s' does not have the bytes that were stored",
                        path.text);
    }
    hth_setting_text(HTH_SET_STORE_CHECK, word);
    bool always = strcmp(word, "always") == 0, never = strcmp(word, "never") == 0;
    *needed = !never && !recent && (always || !known || !check_recent(l.row.checked_ns));
    return HTH_OK;
}

// check_lost tells whether the store no longer lists a tensor: a file that is not there is no
// damage.
static bool check_lost(hth_store *store, const hth_id *id)
{
    bool file;
    return hth_object_is_file(store, id, &file) == HTH_ENOENT;
}

hth_err hth_check_read(hth_store *store, const hth_object *object, bool direct,
                       hth_object_tick tick, void *ctx, hth_object_seen *seen)
{
    hth_err err = hth_object_check(store, object, direct, tick, ctx, seen);
    if (err == HTH_ECORRUPT && check_lost(store, &object->id)) {
        return HTH_OK;
    }
    if (err == HTH_OK || err == HTH_ECORRUPT) {
        hth_check_found(store, &object->id, seen, err != HTH_OK);
        hth_stat_add(HTH_STAT_STORE_BYTES_CHECKED, object->bytes);
    }
    return err;
}

hth_err hth_check_look(hth_store *store, const hth_object *object, hth_object_seen *seen,
                       bool *needed)
{
    *needed = false;
    hth_err err = hth_object_look(store, &object->id, object->bytes, seen);
    if (err == HTH_ECORRUPT && check_lost(store, &object->id)) {
        return hth_fail(HTH_ENOENT, "it is no longer in the store");
    }
    if (err == HTH_ECORRUPT) {
        hth_check_found(store, &object->id, seen, true);
    }
    HTH_TRY(err);
    return check_needed(store, &object->id, seen, needed);
}
