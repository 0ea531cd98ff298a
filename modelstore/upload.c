// SPDX-License-Identifier: Apache-2.0
// The table of uploads. It is what is known of files in tmp/: made from their names when the first
// one is asked for, and rebuilt by whoever opens the store next. Whoever touches a file holds the
// store's lock file shared, so that gc, which holds it alone, is not at work.
#include "modelstore/upload_impl.h"

#include "base/alloc.h"
#include "base/settings.h"
#include "base/size.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UPLOAD_PREFIX "up-"
#define UPLOAD_OWNER  16 // digits

// ---- names

static hth_upload_key upload_key(const char *owner, const hth_id *id)
{
    hth_id name = hth_id_of(&(hth_chunk){owner, strlen(owner)}, 1);
    hth_upload_key key;
    memset(&key, 0, sizeof key);
    key.id = *id;
    memcpy(&key.owner, name.byte, sizeof key.owner);
    return key;
}

hth_path hth_upload_path(const hth_upload_key *key)
{
    hth_path p;
    char hex[HTH_ID_HEX];
    snprintf(p.text, sizeof p.text, "tmp/" UPLOAD_PREFIX "%s-%016llx", hth_id_hex(&key->id, hex),
             (unsigned long long)key->owner);
    return p;
}

bool hth_upload_parse(const char *name, hth_upload_key *out)
{
    size_t n = sizeof UPLOAD_PREFIX - 1;
    unsigned long long owner = 0;
    memset(out, 0, sizeof *out);
    if (strlen(name) != n + HTH_ID_HEX + UPLOAD_OWNER) {
        return false;
    }
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        if (sscanf(name + n + 2 * i, "%2x", &byte) != 1) {
            return false;
        }
        out->id.byte[i] = (uint8_t)byte;
    }
    if (sscanf(name + n + HTH_ID_HEX, "%16llx", &owner) != 1) {
        return false;
    }
    out->owner = owner;
    hth_path again = hth_upload_path(out);
    return strcmp(again.text + sizeof "tmp", name) == 0;
}

// ---- the table; under its lock

static void upload_free(hth_upload *upload)
{
    hth_upload_forget(upload);
    pthread_mutex_destroy(&upload->lock);
    hth_free(upload);
}

static hth_err upload_add(hth_store *store, const hth_upload_key *key, uint64_t bytes,
                          uint64_t touched_ns, hth_upload **out)
{
    hth_upload *u = hth_calloc(1, sizeof *u);
    if (u != NULL) {
        u->key = *key;
        pthread_mutex_init(&u->lock, NULL);
        atomic_init(&u->counted, bytes);
        atomic_init(&u->touched_ns, touched_ns);
        HASH_ADD(hh, store->uploads.by_key, key, sizeof u->key, u);
        if (!HTH_HASH_ADDED(u)) {
            upload_free(u);
            u = NULL;
        }
    }
    *out = u;
    return u != NULL ? HTH_OK : hth_no_memory("an upload");
}

static void upload_remove(hth_store *store, hth_upload *upload)
{
    if (!atomic_load(&upload->gone)) {
        HASH_DEL(store->uploads.by_key, upload);
        atomic_store(&upload->gone, true);
    }
}

static hth_err scan_entry(void *ctx, const char *name)
{
    hth_store *s = ctx;
    hth_upload_key key;
    hth_upload *u;
    struct stat st;
    if (!hth_upload_parse(name, &key)) {
        return HTH_OK;
    }
    HASH_FIND(hh, s->uploads.by_key, &key, sizeof key, u);
    hth_path path = hth_upload_path(&key);
    if (u != NULL || fstatat(s->dir, path.text, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return HTH_OK;
    }
    return upload_add(s, &key, (uint64_t)st.st_size,
                      (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec, &u);
}

static hth_err uploads_scan(hth_store *store)
{
    hth_err err =
        store->uploads.scanned ? HTH_OK : hth_store_file_scan(store->dir, "tmp", scan_entry, store);
    store->uploads.scanned = err == HTH_OK;
    return err;
}

static bool upload_expired(uint64_t touched_ns)
{
    uint64_t most = (uint64_t)hth_setting_int(HTH_SET_STORE_UPLOAD_SECONDS) * 1000000000u;
    uint64_t now = hth_store_wall_ns();
    return now > touched_ns && now - touched_ns > most;
}

// uploads_sweep removes what has expired.
static hth_err uploads_sweep(hth_store *store)
{
    hth_upload *next;
    for (hth_upload *u = store->uploads.by_key; u != NULL; u = next) {
        next = u->hh.next;
        if (u->refs == 0 && upload_expired(atomic_load(&u->touched_ns))) {
            hth_path path = hth_upload_path(&u->key);
            HTH_TRY(hth_store_file_unlink(store->dir, path.text));
            upload_remove(store, u);
            upload_free(u);
        }
    }
    return HTH_OK;
}

static uint64_t upload_counts(uint64_t bytes)
{
    return bytes > HTH_UPLOAD_LEAST_BYTES ? bytes : HTH_UPLOAD_LEAST_BYTES;
}

static hth_err upload_too_many(const char *whose, uint64_t bytes, uint64_t had, uint64_t most,
                               const char *limit)
{
    hth_size a, b, c, d;
    hth_size_pair(bytes, had, &a, &b);
    hth_size_pair(most, had, &c, &d);
    return hth_fail(HTH_ETOOBIG,
                    "an upload of %s: %s have %s uploaded that no version uses yet, and may have "
                    "%s (%s)",
                    a.text, whose, b.text, c.text, limit);
}

// upload_room looks whether an upload may have `bytes`, of which `had` are counted and on the disk.
static hth_err upload_room(hth_store *store, const hth_upload_key *key, uint64_t most,
                           uint64_t bytes, uint64_t had)
{
    uint64_t all = 0, mine = 0, room, limit = (uint64_t)hth_setting_int(HTH_SET_STORE_UPLOAD_BYTES);
    hth_size need, there;
    const hth_upload *u;
    for (u = store->uploads.by_key; u != NULL; u = u->hh.next) {
        bool other = memcmp(&u->key, key, sizeof *key) != 0;
        uint64_t counts = other ? upload_counts(atomic_load(&u->counted)) : 0;
        all += counts;
        mine += u->key.owner == key->owner ? counts : 0;
    }
    if (mine > most || upload_counts(bytes) > most - mine) {
        return upload_too_many("you", bytes, mine, most, "uploads= of the tenant");
    }
    if (all > limit || upload_counts(bytes) > limit - all) {
        return upload_too_many("all clients", bytes, all, limit, "store.upload_bytes");
    }
    HTH_TRY(hth_store_room(store, &room));
    bytes -= had;
    hth_size_pair(bytes, room, &need, &there);
    return bytes <= room ? HTH_OK
                         : hth_fail(HTH_EIO, "it has %s, the store's file system has %s left",
                                    need.text, there.text);
}

static hth_err upload_make(hth_store *store, const hth_upload_key *key, uint64_t most,
                           uint64_t bytes, hth_upload **out)
{
    HTH_TRY(uploads_sweep(store));
    HTH_TRY(upload_room(store, key, most, bytes, 0));
    return upload_add(store, key, bytes, hth_store_wall_ns(), out);
}

// upload_raise has a held upload count for all that it is to have: a scan counted its file.
static hth_err upload_raise(hth_store *store, hth_upload *upload, uint64_t most, uint64_t bytes)
{
    uint64_t had = atomic_load(&upload->counted);
    if (had >= bytes) {
        return HTH_OK;
    }
    HTH_TRY(uploads_sweep(store));
    HTH_TRY(upload_room(store, &upload->key, most, bytes, had));
    atomic_store(&upload->counted, bytes);
    return HTH_OK;
}

// upload_hold finds an upload; where there is none, it makes one (make), or *out is NULL.
static hth_err upload_hold(hth_store *store, const hth_upload_key *key, bool make, uint64_t most,
                           uint64_t bytes, hth_upload **out)
{
    *out = NULL;
    pthread_mutex_lock(&store->uploads.lock);
    hth_err err = uploads_scan(store);
    if (err == HTH_OK) {
        HASH_FIND(hh, store->uploads.by_key, key, sizeof *key, *out);
        hth_upload *found = *out;
        err = found == NULL && make ? upload_make(store, key, most, bytes, out) : HTH_OK;
        if (*out != NULL) {
            (*out)->refs++;
        }
        if (found != NULL && make && (err = upload_raise(store, found, most, bytes)) != HTH_OK) {
            found->refs--;
            *out = NULL;
        }
    }
    pthread_mutex_unlock(&store->uploads.lock);
    return err;
}

hth_err hth_upload_find(hth_store *store, const char *owner, const hth_id *id, hth_upload **out)
{
    hth_upload_key key = upload_key(owner, id);
    return upload_hold(store, &key, false, 0, 0, out);
}

void hth_upload_rele(hth_store *store, hth_upload *upload)
{
    pthread_mutex_lock(&store->uploads.lock);
    assert(upload->refs > 0);
    bool last = --upload->refs == 0 && atomic_load(&upload->gone);
    pthread_mutex_unlock(&store->uploads.lock);
    if (last) {
        upload_free(upload);
    }
}

void hth_upload_drop(hth_store *store, hth_upload *upload)
{
    char sentence[1024];
    hth_path path = hth_upload_path(&upload->key);
    snprintf(sentence, sizeof sentence, "%s", hth_err_detail());
    pthread_mutex_lock(&store->uploads.lock);
    if (!atomic_load(&upload->gone)) { // else the file is another upload's
        upload_remove(store, upload);
        (void)hth_store_file_unlink(store->dir, path.text); // else gc will find it
    }
    pthread_mutex_unlock(&store->uploads.lock);
    (void)hth_fail(HTH_OK, "%s", sentence);
}

void hth_uploads_forget(hth_store *store)
{
    hth_upload *u, *next;
    HASH_ITER (hh, store->uploads.by_key, u, next) {
        HASH_DEL(store->uploads.by_key, u);
        upload_free(u);
    }
}

// ---- pieces

static hth_err upload_piece(const hth_manifest_tensor *tensor, uint64_t at, size_t n)
{
    if (n == 0 || n > HTH_UPLOAD_PIECE_BYTES) {
        return hth_fail(n == 0 ? HTH_EINVAL : HTH_ETOOBIG,
                        "a piece of an upload has 1 to %zu bytes, not %zu", HTH_UPLOAD_PIECE_BYTES,
                        n);
    }
    return at <= tensor->bytes && n <= tensor->bytes - at
               ? HTH_OK
               : hth_fail(HTH_EINVAL, "%zu bytes from %llu on lie outside an object of %llu bytes",
                          n, (unsigned long long)at, (unsigned long long)tensor->bytes);
}

static bool upload_has_file(hth_store *store, const hth_upload *upload)
{
    hth_path path = hth_upload_path(&upload->key);
    return faccessat(store->dir, path.text, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static hth_err upload_put(hth_store *store, hth_upload *upload, const hth_manifest_tensor *object,
                          uint64_t at, const void *data, size_t n, uint64_t *there)
{
    pthread_mutex_lock(&upload->lock);
    hth_err err = atomic_load(&upload->gone)
                      ? hth_fail(HTH_EBUSY, "it was removed meanwhile: begin again")
                      : hth_upload_look(store, upload, object);
    bool unseen = err != HTH_OK && upload_has_file(store, upload);
    if (err == HTH_OK) {
        err = hth_upload_write(store, upload, object, at, data, n);
    }
    atomic_store(&upload->touched_ns, hth_store_wall_ns());
    *there = upload->whole ? HTH_UPLOAD_WHOLE : upload->there;
    // what failed leaves nothing, nor does what was begun with a piece that is refused; a file that
    // could not be looked at has what nobody knows of now
    bool empty = !upload->whole && upload->there == 0 && upload->n_parts == 0 && !unseen;
    if (err == HTH_EIO || err == HTH_ECORRUPT || (err != HTH_OK && empty)) {
        hth_upload_forget(upload);
        hth_upload_drop(store, upload);
    }
    pthread_mutex_unlock(&upload->lock);
    return err;
}

hth_err hth_upload_put(hth_store *store, const char *owner, uint64_t most,
                       const hth_manifest_tensor *object, uint64_t at, const void *data, size_t n,
                       uint64_t *there)
{
    hth_upload_key key = upload_key(owner, &object->id);
    hth_upload *u;
    int lock;
    *there = 0;
    HTH_TRY(hth_upload_check(object));
    HTH_TRY(upload_piece(object, at, n));
    if (store->read_only) {
        return hth_store_read_only();
    }
    HTH_TRY(hth_store_file_lock(store->dir, HTH_STORE_LOCK, false, &lock));
    hth_err err = upload_hold(store, &key, true, most, object->bytes, &u);
    if (err == HTH_OK) {
        err = upload_put(store, u, object, at, data, n, there);
        hth_upload_rele(store, u);
    }
    close(lock);
    char hex[HTH_ID_HEX];
    return hth_err_prefix(err, "object %.12s", hth_id_hex(&key.id, hex));
}

hth_err hth_upload_discard(hth_store *store, const char *owner, const hth_manifest_tensor *objects,
                           int n)
{
    hth_upload *u;
    int lock;
    if (store->read_only) {
        return hth_store_read_only();
    }
    HTH_TRY(hth_store_file_lock(store->dir, HTH_STORE_LOCK, false, &lock));
    hth_err err = HTH_OK;
    for (int i = 0; i < n && err == HTH_OK; i++) {
        err = hth_upload_find(store, owner, &objects[i].id, &u);
        if (err == HTH_OK && u != NULL) {
            pthread_mutex_lock(&u->lock);
            hth_upload_drop(store, u);
            pthread_mutex_unlock(&u->lock);
            hth_upload_rele(store, u);
        }
    }
    close(lock);
    return err;
}

// ---- all of them

hth_err hth_upload_collect(hth_store *store, const char *name, uint64_t *bytes, bool *removed)
{
    hth_upload_key key;
    hth_upload *u = NULL;
    struct stat st;
    char path[300];
    *removed = false;
    snprintf(path, sizeof path, "tmp/%s", name);
    if (fstatat(store->dir, path, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        return HTH_OK; // somebody else was faster
    }
    uint64_t touched = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
    bool upload = hth_upload_parse(name, &key);
    hth_err err = HTH_OK;
    pthread_mutex_lock(&store->uploads.lock);
    if (upload) {
        HASH_FIND(hh, store->uploads.by_key, &key, sizeof key, u);
        uint64_t known = u != NULL ? atomic_load(&u->touched_ns) : 0;
        touched = known > touched ? known : touched;
    }
    if (!upload || upload_expired(touched)) {
        err = hth_store_file_unlink(store->dir, path);
        *removed = err == HTH_OK;
        *bytes = (uint64_t)st.st_size;
    }
    if (*removed && u != NULL) {
        upload_remove(store, u);
        if (u->refs == 0) {
            upload_free(u);
        }
    }
    pthread_mutex_unlock(&store->uploads.lock);
    return err;
}

hth_err hth_upload_state_get(hth_store *store, hth_upload_state *out)
{
    *out = (hth_upload_state){0, 0};
    pthread_mutex_lock(&store->uploads.lock);
    hth_err err = uploads_scan(store);
    for (const hth_upload *u = store->uploads.by_key; u != NULL; u = u->hh.next) {
        hth_path path = hth_upload_path(&u->key);
        uint64_t bytes = 0;
        if (hth_store_file_bytes(store->dir, path.text, &bytes) == HTH_OK) {
            out->objects++;
            out->bytes += bytes;
        }
    }
    pthread_mutex_unlock(&store->uploads.lock);
    return err;
}
