// SPDX-License-Identifier: Apache-2.0
// LMDB's map must be resized with no transaction open in the process: a reader-writer lock around
// transactions sees to that, and another process's growth (MDB_MAP_RESIZED) is adopted the same
// way. Transactions are short: nothing that points into the map leaves this module, so a resize
// never waits for long.
#include "modelstore/index.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"
#include "modelstore/file.h"
#include "modelstore/pages.h"
#include "modelstore/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *const table_names[HTH_N_TABLES] = {"info",    "models", "versions", "tensors",
                                                      "inlines", "texts",  "checks"};
// A table that is not there, in a store that is opened read-only.
#define INDEX_NO_TABLE UINT_MAX

// Readers at one moment, of all processes: one per thread that is inside a read transaction.
#define INDEX_READERS 1024
// A snapshot is overwritten by the second commit after it; nobody commits faster than the disk.
#define INDEX_TRIES 100

static hth_err index_fail(int rc, const char *what)
{
    switch (rc) {
    case MDB_SUCCESS:
        return HTH_OK;
    case MDB_NOTFOUND:
        return HTH_ENOENT;
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_INVALID:
    case MDB_PANIC:
        return hth_fail(HTH_ECORRUPT, "%s: the store's index is damaged: %s", what,
                        mdb_strerror(rc));
    case MDB_VERSION_MISMATCH:
        return hth_fail(HTH_ENOTSUP, "%s: the store's index was made by another version of LMDB",
                        what);
    case MDB_READERS_FULL:
        return hth_fail(HTH_EBUSY, "%s: more than %d threads read the store's index", what,
                        INDEX_READERS);
    case MDB_MAP_FULL:
        return hth_fail(HTH_ETOOBIG, "%s: the store's index is full", what);
    default:
        return rc > 0 ? hth_fail_errno(rc, "%s", what)
                      : hth_fail(HTH_EIO, "%s: %s", what, mdb_strerror(rc));
    }
}

// index_fits tells whether a map of `bytes` is to be had. LMDB gives up the map that it has before
// it asks for another one, and the next transaction of a process with neither would end it.
static bool index_fits(size_t bytes)
{
    void *probe = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (probe == MAP_FAILED) {
        return false;
    }
    munmap(probe, bytes);
    return true;
}

// index_larger stores how large the map is and has to be: twice as large (grow), or as another
// process's, which has at most twice what the file has.
static hth_err index_larger(hth_index *ix, bool grow, size_t *now, size_t *next)
{
    MDB_envinfo info;
    mdb_filehandle_t fd;
    struct stat st;
    HTH_TRY(index_fail(mdb_env_info(ix->env, &info), "reading the store's index"));
    HTH_TRY(index_fail(mdb_env_get_fd(ix->env, &fd), "reading the store's index"));
    if (fstat(fd, &st) != 0) {
        return hth_fail_errno(errno, "reading the store's index");
    }
    *now = info.me_mapsize;
    *next = 2 * (grow ? *now : (size_t)st.st_size);
    return HTH_OK;
}

static hth_err index_resize(hth_index *ix, bool grow)
{
    size_t now = 0, next = 0;
    pthread_rwlock_wrlock(&ix->map_lock);
    hth_err err = index_larger(ix, grow, &now, &next);
    if (err == HTH_OK && !index_fits(next)) {
        err = hth_fail(HTH_ENOMEM,
                       "the map of the store's index cannot grow from %s to %s: this process may "
                       "not have as many addresses (ulimit -v)",
                       hth_size_of(now).text, hth_size_of(next).text);
    }
    if (err == HTH_OK) { // 0: as large as the file says
        int rc = mdb_env_set_mapsize(ix->env, grow ? next : 0);
        err = index_fail(rc, "growing the store's index");
    }
    pthread_rwlock_unlock(&ix->map_lock);
    return err;
}

// index_try runs fn once; *again says that the map's size was in the way and has been mended, else
// why it could not be is the error.
static hth_err index_try(hth_index *ix, unsigned flags, hth_txn_fn fn, void *ctx, bool *again)
{
    hth_txn t = {.ix = ix};
    bool write = !(flags & MDB_RDONLY);
    hth_err err = HTH_OK;
    pthread_rwlock_rdlock(&ix->map_lock);
    t.rc = mdb_txn_begin(ix->env, NULL, flags, &t.txn);
    if (t.rc == 0) {
        err = fn(&t, ctx);
        if (err == HTH_OK && write) {
            err = hth_store_file_point("committing to the store's index");
        }
        if (!write || err != HTH_OK) {
            mdb_txn_abort(t.txn);
        } else {
            t.rc = mdb_txn_commit(t.txn);
            err = index_fail(t.rc, "writing the store's index");
        }
    } else {
        err = index_fail(t.rc, "opening the store's index");
    }
    pthread_rwlock_unlock(&ix->map_lock);
    bool small = err != HTH_OK && (t.rc == MDB_MAP_FULL || t.rc == MDB_MAP_RESIZED);
    if (small) {
        err = index_resize(ix, t.rc == MDB_MAP_FULL);
    }
    *again = small && err == HTH_OK;
    return err;
}

static hth_err index_run(hth_index *ix, unsigned flags, hth_txn_fn fn, void *ctx)
{
    hth_err err;
    bool again;
    do {
        err = index_try(ix, flags, fn, ctx, &again);
    } while (again);
    return err;
}

hth_err hth_index_read(hth_index *ix, hth_txn_fn fn, void *ctx)
{
    return index_run(ix, MDB_RDONLY, fn, ctx);
}

hth_err hth_index_write(hth_index *ix, hth_txn_fn fn, void *ctx)
{
    if (ix->read_only) {
        return hth_store_read_only();
    }
    if (atomic_load(&ix->damaged)) {
        return hth_fail(HTH_ECORRUPT, "the store's index is damaged: nothing is written to it");
    }
    return index_run(ix, 0, fn, ctx);
}

// LMDB reads the number in the newer of the map's two first pages, which a commit writes last. A
// transaction that begins at that moment may still see the commit before it, and says so.
uint64_t hth_index_commit(hth_index *ix)
{
    MDB_envinfo info;
    pthread_rwlock_rdlock(&ix->map_lock);
    int rc = mdb_env_info(ix->env, &info);
    pthread_rwlock_unlock(&ix->map_lock);
    return rc == MDB_SUCCESS ? info.me_last_txnid : 0;
}

uint64_t hth_txn_seen(const hth_txn *txn)
{
    return mdb_txn_id(txn->txn);
}

// index_open_tables makes tables where the index is fresh, and the one that version 0.1.0 did not
// have. Any other that is missing is lost: with an empty one in its place gc would remove files.
static hth_err index_open_tables(hth_txn *txn, void *ctx)
{
    const bool *fresh = ctx;
    for (int i = 0; i < HTH_N_TABLES; i++) {
        bool make = !txn->ix->read_only && (*fresh || i == HTH_TABLE_CHECKS);
        txn->rc = mdb_dbi_open(txn->txn, table_names[i], make ? MDB_CREATE : 0, &txn->ix->dbi[i]);
        if (txn->rc == MDB_NOTFOUND && i == HTH_TABLE_CHECKS) {
            txn->ix->dbi[i] = INDEX_NO_TABLE;
            txn->rc = 0;
        } else if (txn->rc == MDB_NOTFOUND) {
            return hth_fail(HTH_ECORRUPT, "the store's index has no table '%s'", table_names[i]);
        }
        HTH_TRY(index_fail(txn->rc, "opening the store's tables"));
    }
    // In a read transaction, too, only a commit keeps the handles; LMDB allows it, and the caller's
    // end is an abort.
    if (txn->ix->read_only) {
        txn->rc = mdb_txn_commit(txn->txn);
        txn->txn = NULL;
    }
    return HTH_OK;
}

// index_is_there: LMDB makes a new index where the file is missing or empty, and everything that
// was stored would be litter.
static hth_err index_is_there(const char *path)
{
    struct stat st;
    char *file = hth_asprintf("%s/data.mdb", path);
    if (file == NULL) {
        return hth_no_memory("a path");
    }
    int rc = stat(file, &st);
    int errnum = errno;
    hth_free(file);
    if (rc != 0) {
        return errnum == ENOENT ? hth_fail(HTH_ECORRUPT, "the store has no index")
                                : hth_fail_errno(errnum, "reading the store's index");
    }
    bool whole = st.st_size >= 2 * sysconf(_SC_PAGESIZE); // its first two pages are always read
    if (!S_ISREG(st.st_mode)) {
        return hth_fail(HTH_ECORRUPT, "the store's index is damaged: it is not a regular file");
    }
    return whole ? HTH_OK : hth_fail(HTH_ECORRUPT, "the store's index is damaged: it is cut");
}

hth_err hth_index_pages(hth_index *ix)
{
    hth_err err = HTH_EBUSY;
    for (int tries = 0; tries < INDEX_TRIES && err == HTH_EBUSY; tries++) {
        MDB_txn *txn;
        pthread_rwlock_rdlock(&ix->map_lock);
        int rc = mdb_txn_begin(ix->env, NULL, MDB_RDONLY, &txn);
        err = rc == 0 ? hth_pages_check(ix->env, txn) : index_fail(rc, "opening the store's index");
        if (rc == 0) {
            mdb_txn_abort(txn);
        }
        pthread_rwlock_unlock(&ix->map_lock);
        if (rc == MDB_MAP_RESIZED) {
            HTH_TRY(index_resize(ix, false));
            err = HTH_EBUSY;
        }
    }
    if (err == HTH_OK || err == HTH_ECORRUPT) {
        atomic_store(&ix->damaged, err == HTH_ECORRUPT);
    }
    return err == HTH_EBUSY ? HTH_OK : err; // so many writers: somebody else looks at it
}

static hth_err index_copy_to(hth_index *ix, int dir, const char *file)
{
    int fd = openat(dir, file, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        return hth_fail_errno(errno, "making '%s'", file);
    }
    pthread_rwlock_rdlock(&ix->map_lock);
    int rc = mdb_env_copyfd(ix->env, fd);
    pthread_rwlock_unlock(&ix->map_lock);
    hth_err err = index_fail(rc, "copying the store's index");
    if (err == HTH_OK && fdatasync(fd) != 0) {
        err = hth_fail_errno(errno, "syncing '%s'", file);
    }
    close(fd);
    return err;
}

hth_err hth_index_copy(hth_index *ix, int dir)
{
    static const char fresh[] = HTH_INDEX_COPY ".new";
    hth_err err = index_copy_to(ix, dir, fresh);
    if (err == HTH_OK) {
        err = hth_store_file_rename(dir, fresh, HTH_INDEX_COPY);
    }
    if (err != HTH_OK) {
        (void)unlinkat(dir, fresh, 0);
        return err;
    }
    return hth_store_file_sync(dir, "index");
}

// index_has_copy adds to the sentence about a damaged index what can be done.
static hth_err index_has_copy(const char *path)
{
    char what[600], when[32] = "";
    struct stat st;
    struct tm tm;
    char *copy = hth_asprintf("%s/data.copy", path);
    bool there = copy != NULL && stat(copy, &st) == 0 && gmtime_r(&st.st_mtime, &tm) != NULL;
    hth_free(copy);
    if (there) {
        snprintf(what, sizeof what, "%s", hth_err_detail());
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
        return hth_fail(HTH_ECORRUPT,
                        "%s; its copy of %s UTC, " HTH_INDEX_COPY
                        ", can replace index/data.mdb; import again what was added later",
                        what, when);
    }
    return HTH_ECORRUPT;
}

// index_has_readers says whether this process may write LMDB's table of readers, or make it.
static bool index_has_readers(const char *path)
{
    char *table = hth_asprintf("%s/lock.mdb", path);
    bool may = table != NULL &&
               (faccessat(AT_FDCWD, table, W_OK, AT_EACCESS) == 0 ||
                (errno == ENOENT && faccessat(AT_FDCWD, path, W_OK | X_OK, AT_EACCESS) == 0));
    hth_free(table);
    return may;
}

// index_open_env opens the environment. Who cannot be in the table of readers gets a copy
// (snapshot.h), in which nobody writes; LMDB opens it by its descriptor's name.
static int index_open_env(hth_index *ix, const char *path, hth_err *err)
{
    char name[40];
    int fd;
    if (!ix->read_only) {
        return mdb_env_open(ix->env, path, MDB_NOTLS, 0666);
    }
    if (index_has_readers(path)) {
        return mdb_env_open(ix->env, path, MDB_NOTLS | MDB_RDONLY, 0666);
    }
    char *file = hth_asprintf("%s/data.mdb", path);
    *err = file != NULL ? hth_snapshot_take(file, &fd) : hth_no_memory("a path");
    hth_free(file);
    if (*err != HTH_OK) {
        return MDB_SUCCESS;
    }
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    int rc = mdb_env_open(ix->env, name, MDB_NOTLS | MDB_RDONLY | MDB_NOLOCK | MDB_NOSUBDIR, 0);
    close(fd);
    return rc;
}

// index_env makes the environment.
static hth_err index_env(hth_index *ix, const char *path)
{
    int dead = 0;
    hth_err err = HTH_OK;
    int rc = mdb_env_create(&ix->env);
    rc = rc ? rc : mdb_env_set_maxdbs(ix->env, HTH_N_TABLES);
    rc = rc ? rc : mdb_env_set_maxreaders(ix->env, INDEX_READERS);
    rc = rc ? rc : mdb_env_set_mapsize(ix->env, (size_t)hth_setting_int(HTH_SET_STORE_INDEX_BYTES));
    rc = rc ? rc : index_open_env(ix, path, &err);
    HTH_TRY(err);
    rc = rc ? rc : mdb_reader_check(ix->env, &dead); // killed processes would keep old pages
    if (rc == MDB_NOTFOUND || rc == ENOENT) {
        return hth_fail(HTH_ECORRUPT, "the store has no index");
    }
    return index_fail(rc, "opening the store's index");
}

hth_err hth_index_open(hth_index *ix, const char *path, bool read_only, bool fresh)
{
    hth_err there = fresh ? HTH_OK : index_is_there(path);
    if (there != HTH_OK) {
        return there == HTH_ECORRUPT ? index_has_copy(path) : there;
    }
    ix->read_only = read_only;
    pthread_rwlock_init(&ix->map_lock, NULL);
    hth_err err;
    HTH_GOTO(index_env(ix, path), fail);
    HTH_GOTO(hth_index_pages(ix), fail);
    HTH_GOTO(index_run(ix, read_only ? MDB_RDONLY : 0, index_open_tables, &fresh), fail);
    return HTH_OK;
fail:
    hth_index_close(ix);
    return err == HTH_ECORRUPT ? index_has_copy(path) : err;
}

void hth_index_close(hth_index *ix)
{
    if (ix->env != NULL) {
        mdb_env_close(ix->env);
        ix->env = NULL;
    }
    pthread_rwlock_destroy(&ix->map_lock);
}

hth_err hth_txn_get(hth_txn *txn, hth_table table, const void *key, size_t key_bytes, MDB_val *out)
{
    MDB_val k = {key_bytes, (void *)key};
    if (txn->ix->dbi[table] == INDEX_NO_TABLE) {
        return HTH_ENOENT;
    }
    txn->rc = mdb_get(txn->txn, txn->ix->dbi[table], &k, out);
    return index_fail(txn->rc, "reading the store's index");
}

hth_err hth_txn_put(hth_txn *txn, hth_table table, const void *key, size_t key_bytes,
                    const void *value, size_t bytes)
{
    MDB_val k = {key_bytes, (void *)key}, v = {bytes, (void *)value};
    HTH_TRY(hth_store_file_point("writing the store's index"));
    txn->rc = mdb_put(txn->txn, txn->ix->dbi[table], &k, &v, 0);
    return index_fail(txn->rc, "writing the store's index");
}

hth_err hth_txn_del(hth_txn *txn, hth_table table, const void *key, size_t key_bytes)
{
    MDB_val k = {key_bytes, (void *)key};
    HTH_TRY(hth_store_file_point("writing the store's index"));
    txn->rc = mdb_del(txn->txn, txn->ix->dbi[table], &k, NULL);
    return txn->rc == MDB_NOTFOUND ? HTH_OK : index_fail(txn->rc, "writing the store's index");
}

hth_err hth_txn_entries(hth_txn *txn, hth_table table, uint64_t *out)
{
    MDB_stat stat = {.ms_entries = 0};
    txn->rc =
        txn->ix->dbi[table] != INDEX_NO_TABLE ? mdb_stat(txn->txn, txn->ix->dbi[table], &stat) : 0;
    *out = stat.ms_entries;
    return index_fail(txn->rc, "reading the store's index");
}

hth_err hth_txn_each(hth_txn *txn, hth_table table, const void *from, size_t from_bytes,
                     hth_row_fn fn, void *ctx)
{
    MDB_cursor *cursor;
    MDB_val key = {from_bytes, (void *)from}, value;
    if (txn->ix->dbi[table] == INDEX_NO_TABLE) {
        return HTH_OK;
    }
    txn->rc = mdb_cursor_open(txn->txn, txn->ix->dbi[table], &cursor);
    HTH_TRY(index_fail(txn->rc, "reading the store's index"));
    hth_err err = HTH_OK;
    int rc = mdb_cursor_get(cursor, &key, &value, from_bytes ? MDB_SET_RANGE : MDB_FIRST);
    while (rc == 0 && err == HTH_OK) {
        err = fn(txn, ctx, &key, &value);
        rc = err == HTH_OK ? mdb_cursor_get(cursor, &key, &value, MDB_NEXT) : 0;
    }
    mdb_cursor_close(cursor);
    if (rc != 0 && rc != MDB_NOTFOUND) {
        txn->rc = rc;
        err = index_fail(rc, "reading the store's index");
    }
    return err;
}
