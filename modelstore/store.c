// SPDX-License-Identifier: Apache-2.0
// Opening and making stores, and the questions that the index alone answers.
//
// A directory becomes a store by its file `format`, written last: a creation that was killed is
// simply finished by the next one. One process has one hth_store per directory, counted: a second
// LMDB environment on the same file would, by POSIX rules, drop the first one's locks when it
// closes.
#include "modelstore/check.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/utf8.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static hth_store *open_stores; // guarded by open_lock

// store_mkdirs makes `path` and its missing parents.
static hth_err store_mkdirs(const char *path)
{
    char *p = hth_strdup(path);
    if (p == NULL) {
        return hth_no_memory("a path");
    }
    hth_err err = HTH_OK;
    for (char *slash = p; err == HTH_OK && slash != NULL;) {
        slash = strchr(slash + 1, '/');
        if (slash != NULL) {
            *slash = '\0';
        }
        err = hth_store_file_mkdir(AT_FDCWD, p);
        if (slash != NULL) {
            *slash = '/';
        }
    }
    hth_free(p);
    return err;
}

// `format` may appear while we look: another process that makes the same store has just finished.
static hth_err store_only_ours(void *ctx, const char *name)
{
    static const char *const ours[] = {"tensors",      "tmp",        "index",
                                       HTH_STORE_LOCK, "lost+found", "format"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        if (strcmp(name, ours[i]) == 0) {
            return HTH_OK;
        }
    }
    return hth_fail(HTH_EINVAL, "the directory is not a store and holds other files ('%.100s')",
                    name);
}

// store_read_format stores the number in the file `format`, 0 when there is no such file.
static hth_err store_read_format(int dir, int *format)
{
    char text[64] = "";
    *format = 0;
    int fd = openat(dir, "format", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT ? HTH_OK : hth_fail_errno(errno, "opening 'format'");
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n < 0 || sscanf(text, "hearth-store %d", format) != 1 || *format < 1) {
        return hth_fail(HTH_ECORRUPT, "the file 'format' is not a store's");
    }
    return HTH_OK;
}

static hth_err store_write_format(int dir)
{
    char text[64];
    hth_path temp = hth_path_of_temp();
    int n = snprintf(text, sizeof text, "hearth-store %d\n", HTH_STORE_FORMAT);
    HTH_TRY(hth_store_file_write(dir, temp.text, text, (size_t)n, NULL, NULL));
    HTH_TRY(hth_store_file_sync(dir, temp.text));
    HTH_TRY(hth_store_file_rename(dir, temp.text, "format"));
    return hth_store_file_sync(dir, ".");
}

static hth_err store_open_index(hth_store *store, const char *path, bool fresh)
{
    char *index = hth_asprintf("%s/index", path);
    if (index == NULL) {
        return hth_no_memory("a path");
    }
    hth_err err = hth_index_open(&store->index, index, store->read_only, fresh);
    hth_free(index);
    return err;
}

// store_create makes what is missing of a new store, unless another process has just done so; the
// lock file is held alone, else gc would take the temporary file for litter.
static hth_err store_create(hth_store *store, const char *path)
{
    int format;
    HTH_TRY(store_read_format(store->dir, &format));
    if (format > 0) {
        return store_open_index(store, path, false);
    }
    HTH_TRY(hth_store_file_mkdir(store->dir, "tensors"));
    HTH_TRY(hth_store_file_mkdir(store->dir, "tmp"));
    HTH_TRY(hth_store_file_mkdir(store->dir, "index"));
    HTH_TRY(store_open_index(store, path, true));
    hth_err err = store_write_format(store->dir);
    if (err != HTH_OK) {
        hth_index_close(&store->index);
    }
    return err;
}

static hth_err store_prepare(hth_store *store, const char *path, bool create)
{
    int format, lock;
    HTH_TRY(store_read_format(store->dir, &format));
    if (format > HTH_STORE_FORMAT) {
        return hth_fail(HTH_ENOTSUP,
                        "the store has format %d; this version of hearth knows formats up to %d",
                        format, HTH_STORE_FORMAT);
    }
    if (format > 0) {
        return store_open_index(store, path, false);
    }
    if (!create || store->read_only) {
        return hth_fail(HTH_ENOENT, "the directory is not a store");
    }
    HTH_TRY(hth_store_file_scan(store->dir, ".", store_only_ours, NULL));
    HTH_TRY(hth_store_file_lock(store->dir, HTH_STORE_LOCK, true, &lock));
    hth_err err = store_create(store, path);
    close(lock);
    return err;
}

// store_join stores the already open store of the directory, NULL if there is none.
static hth_err store_join(int dir, bool read_only, hth_store **out, struct stat *st)
{
    *out = NULL;
    if (fstat(dir, st) != 0) {
        return hth_fail_errno(errno, "reading the directory");
    }
    for (hth_store *s = open_stores; s != NULL; s = s->next) {
        if (s->dev == st->st_dev && s->ino == st->st_ino) {
            if (s->read_only && !read_only) {
                return hth_fail(HTH_EBUSY, "this process has the store open read-only");
            }
            s->refs++;
            *out = s;
            break;
        }
    }
    return HTH_OK;
}

static hth_err store_open_dir(int dir, const char *path, bool create, bool read_only,
                              hth_store **out)
{
    struct stat st;
    HTH_TRY(store_join(dir, read_only, out, &st));
    if (*out != NULL) {
        close(dir);
        return HTH_OK;
    }
    hth_store *s = hth_calloc(1, sizeof *s);
    if (s == NULL) {
        return hth_fail(HTH_ENOMEM, "out of memory");
    }
    s->dir = dir;
    s->read_only = read_only;
    s->refs = 1;
    s->dev = st.st_dev;
    s->ino = st.st_ino;
    pthread_mutex_init(&s->memo_lock, NULL);
    pthread_mutex_init(&s->recent.lock, NULL);
    pthread_mutex_init(&s->uploads.lock, NULL);
    hth_err err = store_prepare(s, path, create);
    if (err != HTH_OK) {
        pthread_mutex_destroy(&s->uploads.lock);
        pthread_mutex_destroy(&s->memo_lock);
        pthread_mutex_destroy(&s->recent.lock);
        hth_free(s);
        return err;
    }
    s->next = open_stores;
    open_stores = s;
    *out = s;
    return HTH_OK;
}

hth_err hth_store_open(const char *path, bool create, bool read_only, hth_store **out)
{
    *out = NULL;
    pthread_mutex_lock(&open_lock);
    hth_err err = create && !read_only ? store_mkdirs(path) : HTH_OK;
    if (err == HTH_OK) {
        int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        err = dir < 0 ? hth_fail_errno(errno, "opening the directory")
                      : store_open_dir(dir, path, create, read_only, out);
        if (err != HTH_OK && dir >= 0) {
            close(dir);
        }
    }
    pthread_mutex_unlock(&open_lock);
    if (err != HTH_OK) {
        return hth_err_prefix(err, "store '%s'", path);
    }
    hth_log(DEBUG, STORE, "open", "dir=%s read_only=%d", path, read_only);
    return HTH_OK;
}

hth_err hth_store_open_as_it_may(const char *dir, hth_store **out)
{
    hth_err err = hth_store_open(dir, true, false, out);
    if (err != HTH_EDENIED) {
        return err;
    }
    char *format = hth_asprintf("%s/format", dir);
    bool there = format != NULL && faccessat(AT_FDCWD, format, R_OK, AT_EACCESS) == 0;
    hth_free(format);
    return there ? hth_store_open(dir, false, true, out) : err;
}

void hth_store_close(hth_store *store)
{
    if (store == NULL) {
        return;
    }
    pthread_mutex_lock(&open_lock);
    assert(store->refs > 0);
    if (--store->refs == 0) {
        hth_store **p = &open_stores;
        while (*p != store) {
            p = &(*p)->next;
        }
        *p = store->next;
        hth_check_flush(store);
        hth_check_forget(store);
        hth_uploads_forget(store);
        pthread_mutex_destroy(&store->uploads.lock);
        pthread_mutex_destroy(&store->memo_lock);
        pthread_mutex_destroy(&store->recent.lock);
        hth_index_close(&store->index);
        close(store->dir);
        hth_free(store);
    }
    pthread_mutex_unlock(&open_lock);
}

hth_err hth_store_check_name(const char *name)
{
    size_t n = strnlen(name, HTH_STORE_NAME_MAX + 1);
    if (n == 0 || n > HTH_STORE_NAME_MAX) {
        return hth_fail(HTH_EINVAL, "a model's name has 1 to %d bytes", HTH_STORE_NAME_MAX);
    }
    bool bad = name[0] == '.';
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)name[i];
        bad |= c < 0x20 || c == 0x7f || c == '/' || c == ':';
    }
    return bad ? hth_fail(HTH_EINVAL,
                          "'%s' is not a valid model name: no '/', ':' or control characters, and "
                          "no leading '.'",
                          name)
               : HTH_OK;
}

hth_err hth_store_check_new(const char *name)
{
    HTH_TRY(hth_store_check_name(name));
    for (size_t n = strlen(name), at = 0, bytes; at < n; at += bytes) {
        char plain[HTH_STORE_NAME_MAX + 1];
        uint32_t code;
        bytes = hth_utf8_next(name + at, n - at, &code);
        if (bytes > 0 && !hth_utf8_hidden(code)) {
            continue;
        }
        memcpy(plain, name, n + 1);
        hth_utf8_plain(plain);
        return bytes == 0 || code == HTH_UTF8_NONE
                   ? hth_fail(HTH_EINVAL, "'%s' cannot be a model's name: byte %zu is not UTF-8",
                              plain, at + 1)
                   : hth_fail(HTH_EINVAL,
                              "'%s' cannot be a model's name: it has a character that is not seen "
                              "(U+%04X, at byte %zu)",
                              plain, (unsigned)code, at + 1);
    }
    return HTH_OK;
}

hth_version_key hth_version_key_of(const char *name, int version)
{
    hth_version_key k;
    size_t n = strlen(name); // checked: at most HTH_STORE_NAME_MAX
    uint32_t be = htobe32((uint32_t)version);
    memcpy(k.text, name, n + 1);
    memcpy(k.text + n + 1, &be, sizeof be);
    k.bytes = n + 1 + sizeof be;
    return k;
}

hth_err hth_version_key_parse(const MDB_val *key, char *name, int *version)
{
    size_t n = strnlen(key->mv_data, key->mv_size);
    uint32_t be;
    if (n > HTH_STORE_NAME_MAX || key->mv_size != n + 1 + sizeof be) {
        return hth_fail(HTH_ECORRUPT, "the store's list of versions is damaged");
    }
    memcpy(name, key->mv_data, n + 1);
    memcpy(&be, (const char *)key->mv_data + n + 1, sizeof be);
    *version = (int)be32toh(be);
    return HTH_OK;
}

static hth_err store_last_row(hth_txn *txn, void *ctx, const MDB_val *key, const MDB_val *value)
{
    const hth_version_key *want = ((void **)ctx)[0];
    char name[HTH_STORE_NAME_MAX + 1];
    int version;
    HTH_TRY(hth_version_key_parse(key, name, &version));
    if (strcmp(name, want->text) != 0) {
        return HTH_ECANCELED; // past the model's rows
    }
    *(int *)((void **)ctx)[1] = version;
    return HTH_OK;
}

hth_err hth_store_last(hth_txn *txn, const char *name, int *version)
{
    hth_version_key from = hth_version_key_of(name, 0);
    void *ctx[] = {&from, version};
    *version = 0;
    hth_err err = hth_txn_each(txn, HTH_TABLE_VERSIONS, from.text, from.bytes, store_last_row, ctx);
    return err == HTH_ECANCELED ? HTH_OK : err;
}

hth_err hth_store_row(hth_txn *txn, const hth_id *id, hth_tensor_row *out)
{
    MDB_val v;
    HTH_TRY(hth_txn_get(txn, HTH_TABLE_TENSORS, id, sizeof *id, &v));
    if (v.mv_size != sizeof *out) {
        return hth_fail(HTH_ECORRUPT, "the store's list of tensors is damaged");
    }
    memcpy(out, v.mv_data, sizeof *out);
    return HTH_OK;
}

static hth_err store_read_changes(hth_txn *txn, void *ctx)
{
    MDB_val v;
    hth_err err = hth_txn_get(txn, HTH_TABLE_INFO, "changes", 7, &v);
    if (err == HTH_OK && v.mv_size == sizeof(uint64_t)) {
        memcpy(ctx, v.mv_data, v.mv_size);
    }
    return err == HTH_ENOENT ? HTH_OK : err;
}

hth_err hth_store_changed(hth_txn *txn)
{
    uint64_t n = 0;
    HTH_TRY(store_read_changes(txn, &n));
    n++;
    return hth_txn_put(txn, HTH_TABLE_INFO, "changes", 7, &n, sizeof n);
}

typedef struct change_job {
    uint64_t commit, changes;
} change_job;

static hth_err store_count_changes(hth_txn *txn, void *ctx)
{
    change_job *job = ctx;
    job->commit = hth_txn_seen(txn);
    return store_read_changes(txn, &job->changes);
}

uint64_t hth_store_change_count(hth_store *store)
{
    hth_store_recent *recent = &store->recent;
    change_job job = {.commit = hth_index_commit(&store->index)};
    pthread_mutex_lock(&recent->lock);
    bool known = job.commit != 0 && job.commit == recent->commit;
    job.changes = known ? recent->changes : 0;
    pthread_mutex_unlock(&recent->lock);
    if (known) {
        return job.changes;
    }
    if (hth_index_read(&store->index, store_count_changes, &job) != HTH_OK) {
        return 0;
    }
    pthread_mutex_lock(&recent->lock);
    recent->commit = job.commit;
    recent->changes = job.changes;
    pthread_mutex_unlock(&recent->lock);
    return job.changes;
}

static hth_err store_read_health(hth_txn *txn, void *ctx)
{
    return hth_check_health_get(txn, ctx);
}

static hth_err store_read_state(hth_txn *txn, void *ctx)
{
    hth_store_health *h = ctx;
    hth_check_health marks;
    hth_scrub_state scrub;
    HTH_TRY(hth_check_health_get(txn, &marks));
    HTH_TRY(hth_scrub_state_get(txn, &scrub));
    *h = (hth_store_health){.damaged = marks.damaged,
                            .index_damages = scrub.index_damages,
                            .tensors = scrub.tensors,
                            .bytes = scrub.bytes,
                            .scrubbed_ns = scrub.passed_ns,
                            .oldest_ns = scrub.oldest_ns,
                            .index_ns = scrub.index_ns};
    return HTH_OK;
}

hth_err hth_store_health_get(hth_store *store, hth_store_health *out)
{
    *out = (hth_store_health){.damaged = 0};
    return hth_index_read(&store->index, store_read_state, out);
}

uint64_t hth_store_health_count(hth_store *store)
{
    hth_check_health h = {.events = 0};
    hth_err err = hth_index_read(&store->index, store_read_health, &h);
    return err == HTH_OK ? h.events : 0;
}

typedef struct store_text {
    const char *key, *value, *old;
    char *out;
    size_t cap;
} store_text;

static hth_err store_text_check(const char *key)
{
    size_t n = strnlen(key, 512);
    return n >= 1 && n <= 511
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "a text's key has 1 to 511 bytes"); // LMDB's limit
}

static hth_err store_text_put(hth_txn *txn, void *ctx)
{
    store_text *x = ctx;
    return hth_txn_put(txn, HTH_TABLE_TEXTS, x->key, strlen(x->key), x->value, strlen(x->value));
}

static hth_err store_text_find(hth_txn *txn, const char *key, MDB_val *val)
{
    hth_err err = hth_txn_get(txn, HTH_TABLE_TEXTS, key, strlen(key), val);
    return err == HTH_ENOENT ? hth_fail(err, "the store has no text '%.100s'", key) : err;
}

static hth_err store_text_get(hth_txn *txn, void *ctx)
{
    store_text *x = ctx;
    MDB_val v;
    HTH_TRY(store_text_find(txn, x->key, &v));
    if (v.mv_size >= x->cap) {
        return hth_fail(HTH_ETOOBIG, "the text '%.100s' has %zu bytes, but the buffer has %zu",
                        x->key, v.mv_size, x->cap);
    }
    memcpy(x->out, v.mv_data, v.mv_size);
    x->out[v.mv_size] = '\0';
    return HTH_OK;
}

static hth_err store_text_swap(hth_txn *txn, void *ctx)
{
    const store_text *x = ctx;
    MDB_val v;
    hth_err err = store_text_find(txn, x->key, &v);
    if (err != HTH_OK && err != HTH_ENOENT) {
        return err;
    }
    bool same = err == HTH_OK && x->old != NULL && v.mv_size == strlen(x->old) &&
                memcmp(v.mv_data, x->old, v.mv_size) == 0;
    if (!same && (err == HTH_OK || x->old != NULL)) {
        return hth_fail(HTH_EEXIST, "the text '%.100s' has changed", x->key);
    }
    return store_text_put(txn, ctx);
}

static hth_err store_text_load(hth_txn *txn, void *ctx)
{
    store_text *x = ctx;
    MDB_val v;
    HTH_TRY(store_text_find(txn, x->key, &v));
    x->out = hth_strndup(v.mv_data, v.mv_size);
    return x->out != NULL ? HTH_OK : hth_no_memory("a text of the store");
}

hth_err hth_store_text_put(hth_store *store, const char *key, const char *value)
{
    HTH_TRY(store_text_check(key));
    return hth_index_write(&store->index, store_text_put,
                           &(store_text){.key = key, .value = value});
}

hth_err hth_store_text_swap(hth_store *store, const char *key, const char *old, const char *value)
{
    HTH_TRY(store_text_check(key));
    return hth_index_write(&store->index, store_text_swap,
                           &(store_text){.key = key, .value = value, .old = old});
}

hth_err hth_store_text_get(hth_store *store, const char *key, char *value, size_t cap)
{
    HTH_TRY(store_text_check(key));
    return hth_index_read(&store->index, store_text_get,
                          &(store_text){.key = key, .out = value, .cap = cap});
}

hth_err hth_store_text_load(hth_store *store, const char *key, char **value)
{
    store_text x = {.key = key};
    HTH_TRY(store_text_check(key));
    HTH_TRY(hth_index_read(&store->index, store_text_load, &x));
    *value = x.out;
    return HTH_OK;
}
