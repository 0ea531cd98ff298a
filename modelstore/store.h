// SPDX-License-Identifier: Apache-2.0
// modelstore/store.h - content-addressed tensors and versioned models on disk.
//
// Design notes
// A tensor's id is the SHA-256 of dtype, shape and bytes; its bytes are one flat file, written to a
// temporary name, fsynced, renamed, and only then named by the LMDB index, in one transaction with
// the version that needs it: after a crash a version is whole or absent, and stray files are what
// `gc` removes. Files are mapped and never copied on the host; a 2 MiB-aligned address lets large
// ones use huge pages. Two processes may open one store: LMDB serialises the writers, readers never
// wait. A store of a newer format is refused.
#ifndef HTH_MODELSTORE_STORE_H
#define HTH_MODELSTORE_STORE_H

#include "base/id.h"
#include "graph/graph.h"

typedef struct hth_store hth_store;

// Opens (and with `create`, makes) the store in directory `dir`. read_only: no write will be tried.
hth_err hth_store_open(const char *dir, bool create, bool read_only, hth_store **out);
// hth_store_open_as_it_may opens the store for writing, made if absent; one that is there, and that
// this process may not write (permissions, a file system mounted read-only), read-only. Then what
// others write later is not seen, where not even the index's table of readers may be written.
hth_err hth_store_open_as_it_may(const char *dir, hth_store **out);
void hth_store_close(hth_store *store); // views held elsewhere stay valid

typedef struct hth_put_tensor {
    const char *name; // the initializer's name
    hth_dtype dtype;
    hth_shape shape;
    const void *data; // NULL: `read`
    size_t bytes;
    // read writes `n` bytes of the content, from `at` on, to dst. What it gives may be another
    // thing each time: what is stored under an id are bytes that have it. Two threads at a time.
    hth_err (*read)(void *ctx, uint64_t at, void *dst, size_t n);
    void *read_ctx;
    // What the content has to be; may be NULL. Without data and read: it is in the store, as one of
    // this dtype and shape (hth_upload_have), or `owner` has uploaded it (upload.h).
    const hth_id *id;
    const char *owner;
} hth_put_tensor;

typedef struct hth_put_result {
    int version;
    uint64_t tensors_new, tensors_shared, bytes_new, bytes_shared;
    bool unchanged; // equal to the latest version: no new version was made, `version` is that one
    uint64_t tensors_repaired, bytes_repaired; // of those shared: were damaged in the store
    bool record_repaired; // .. and so was the record of a version of this model that it is equal to
} hth_put_result;

// hth_progress_fn is told how far long work is; returning non-zero cancels it (HTH_ECANCELED).
typedef int (*hth_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);

// hth_store_put adds a version of model `name` (1, 2, ..): a skeleton (graph) and its tensors.
// Hashes on two threads, writes what is new. What the store has already is compared, and written
// again where it is damaged: whoever has the damaged file mapped keeps it. Atomic. `meta` is a
// small JSON text kept with the version (may be NULL). Names: hth_store_check_new.
hth_err hth_store_put(hth_store *store, const char *name, const void *skeleton,
                      size_t skeleton_bytes, const char *meta, const hth_put_tensor *tensors, int n,
                      hth_progress_fn progress, void *ctx, hth_put_result *out);
// hth_store_put_if is hth_store_put that asks `may` before it commits other content than that of
// the newest version, where there is one. What `may` fails with is the put's failure, and nothing
// was stored; it can read the store. HTH_EBUSY: the newest version became another one after that.
typedef struct hth_put_ask {
    hth_err (*may)(void *ctx);
    void *ctx;
    bool renew; // the newest version, if it has this content, counts as made now
} hth_put_ask;
hth_err hth_store_put_if(hth_store *store, const char *name, const char *meta,
                         const hth_put_tensor *tensors, int n, const hth_put_ask *ask,
                         hth_progress_fn progress, void *ctx, hth_put_result *out);

// hth_store_room is how many bytes the store's file system has left for this user. HTH_EDENIED: the
// store is read-only.
hth_err hth_store_room(hth_store *store, uint64_t *bytes);
// hth_store_reserve keeps so many of them from others until hth_store_unreserve, or the end of the
// process. *fd -1: the file system cannot, there is only room now. HTH_EIO: there is too little.
hth_err hth_store_reserve(hth_store *store, uint64_t bytes, int *fd);
void hth_store_unreserve(int fd); // -1 is allowed

// hth_store_check_name: HTH_EINVAL, this can be no model's name: 1-200 bytes, no '/', ':' or
// control characters of ASCII, not starting with '.'.
hth_err hth_store_check_name(const char *name);
// hth_store_check_new is the same for the name of a new version, in which everything is to be seen:
// UTF-8 without what hth_utf8_hidden tells of. Versions that have other names, from before that was
// asked for, can be read and removed.
hth_err hth_store_check_new(const char *name);

// Names with these ends are those of tenants' datasets and of jobs' checkpoints. Who asks for a
// model that is not there is not told of them.
#define HTH_STORE_TAIL_DATASET    ".dataset"
#define HTH_STORE_TAIL_CHECKPOINT ".checkpoint"

typedef struct hth_manifest_tensor {
    char *name;
    hth_id id;
    hth_dtype dtype;
    hth_shape shape;
    uint64_t bytes;
} hth_manifest_tensor;

typedef struct hth_manifest {
    char *name;
    int version;
    uint64_t created_ns; // wall clock, since 1970
    void *skeleton;
    size_t skeleton_bytes;
    char *meta; // "" when none
    int n_tensors;
    hth_manifest_tensor *tensors;
} hth_manifest;

// hth_store_get reads a version's manifest; version 0: the latest. HTH_ENOENT names what exists.
hth_err hth_store_get(hth_store *store, const char *name, int version, hth_manifest *out);
void hth_manifest_fini(hth_manifest *manifest);
// hth_store_each calls `fn` for each version whose record is sound, by name and version, in one
// transaction, until it returns other than HTH_OK, which is returned. The manifest is there until
// fn returns; fn asks nothing of a store.
typedef hth_err (*hth_version_fn)(void *ctx, const hth_manifest *manifest);
hth_err hth_store_each(hth_store *store, hth_version_fn fn, void *ctx);

// hth_store_view maps a tensor: a constant whose data is the mapping; views of one id are one
// mapping per process. Any thread. HTH_ECORRUPT: what is stored is not what was: it is missing, of
// another size, marked as damaged, or was read now (store.check_on_load) and found so.
hth_err hth_store_view(hth_store *store, const hth_manifest_tensor *tensor, hth_const **out);
// A tensor that is read in pieces, not mapped: what was read does not count as the process's
// memory. It stays what it was when it was opened, whatever gc or an import do.
typedef struct hth_store_bytes {
    hth_const *view; // of one in the index
    int fd;          // of another's file
    uint64_t bytes;
    const char *name; // the manifest's
} hth_store_bytes;
// hth_store_bytes_open opens a tensor, with hth_store_view's errors. hth_store_bytes_read stores
// its bytes [at, at + n). HTH_ECORRUPT: they are not there any more. One thread.
hth_err hth_store_bytes_open(hth_store *store, const hth_manifest_tensor *tensor,
                             hth_store_bytes *out);
hth_err hth_store_bytes_read(const hth_store_bytes *bytes, uint64_t at, void *dst, size_t n);
void hth_store_bytes_close(hth_store_bytes *bytes); // zeroed with fd -1: nothing happens
// hth_store_check reads those tensors of a version that hth_store_view would have to, on several
// threads, and remembers the result. HTH_ECORRUPT names the first bad one.
hth_err hth_store_check(hth_store *store, const hth_manifest *manifest);
// hth_store_sound tells, without reading any, whether the tensors of a version that was loaded may
// be used on. HTH_ECORRUPT: one is marked as damaged; HTH_EBUSY: an import has repaired one, and
// its present view is one of the damaged file.
hth_err hth_store_sound(hth_store *store, const hth_manifest *manifest);
// What is known of the state of all that is stored; times are since 1970, 0: never.
typedef struct hth_store_health {
    uint64_t damaged;        // tensors that are known to be damaged, and not used
    uint64_t index_damages;  // what was wrong with the index when it was looked at last
    uint64_t tensors, bytes; // that have files, as of the last reading in the background
    uint64_t scrubbed_ns;    // when that had read all that was due
    uint64_t oldest_ns,
        index_ns; // when, then, the tensor that was read longest ago was read; the index
} hth_store_health;
hth_err hth_store_health_get(hth_store *store, hth_store_health *out);
// hth_store_health_count grows whenever something is found damaged, or repaired, by any process.
uint64_t hth_store_health_count(hth_store *store);

// hth_store_verify reads every tensor of a version. HTH_ECORRUPT names the first bad one.
hth_err hth_store_verify(hth_store *store, const char *name, int version);

// Something that is not as it was stored.
typedef struct hth_store_damage {
    const char *model; // "" and 0: of the store as a whole
    int version;
    const char *tensor; // "": the version's record: its graph, and the list of its tensors
    const char *file;   // in the store's directory: "tensors/ab/cdef..", "index/data.mdb"
    const char *what;
} hth_store_damage;

typedef struct hth_store_verified {
    uint64_t versions, tensors,
        bytes;        // that were read; tensors and bytes that are shared count once
    uint64_t damaged; // times that `damage` was called
} hth_store_verified;

// hth_store_verify_all reads all versions of a model (version 0), or one, or (name NULL) everything
// that is stored, the index included, and calls `damage` for everything that is damaged: a tensor
// for each version that uses it. Blocks for as long as the disk takes. What it finds is remembered:
// models that use what is damaged are not served any more. HTH_ENOENT names what exists.
typedef void (*hth_store_damage_fn)(void *ctx, const hth_store_damage *damage);
hth_err hth_store_verify_all(hth_store *store, const char *name, int version,
                             hth_progress_fn progress, hth_store_damage_fn damage, void *ctx,
                             hth_store_verified *out);

typedef struct hth_store_entry {
    char name[201];
    int version;
    uint64_t created_ns, bytes, own_bytes; // own_bytes: of tensors that no other version uses
    int n_tensors;
    bool damaged; // its record is, which says how many tensors and bytes there are, or a tensor is
                  // known to be
} hth_store_entry;
// hth_store_list stores an hth_alloc'd array of all versions, by name and version; the caller frees
// it with hth_free.
hth_err hth_store_list(hth_store *store, hth_store_entry **out, int *n);
// hth_store_versions stores an hth_alloc'd array of the versions that a model has, in order; *n is
// 0, and *out NULL, where it has none.
hth_err hth_store_versions(hth_store *store, const char *name, int **out, int *n);
// hth_store_rm removes a version (0: all). Tensors nobody refers to are removed by hth_store_gc.
hth_err hth_store_rm(hth_store *store, const char *name, int version);
// hth_store_gc removes unreferenced tensor files and strays; reports what it freed. Whatever the
// index counts, nothing goes that a version's record names. HTH_EBUSY: a put runs, in whatever
// process, or a piece of an upload is being written; it does not wait. HTH_ECORRUPT: a record is
// damaged, so that nobody knows what it names. Nothing was removed then.
hth_err hth_store_gc(hth_store *store, uint64_t *files, uint64_t *bytes);
// hth_store_collect is hth_store_gc after a removal, which stands whatever becomes of the files:
// failure is logged. While a put runs, they are left to the next one.
void hth_store_collect(hth_store *store);

// Small texts by key (timing tables, plans): survive restarts; last writer wins.
hth_err hth_store_text_put(hth_store *store, const char *key, const char *value);
hth_err hth_store_text_get(hth_store *store, const char *key, char *value,
                           size_t cap); // HTH_ENOENT
// hth_store_text_load is the same for texts of any length: *value is freed by hth_free.
hth_err hth_store_text_load(hth_store *store, const char *key, char **value);
// hth_store_text_swap puts `value` if the text is `old` (NULL: if there is none). HTH_EEXIST: it is
// another, and stays; of several that swap the same text at once, in whatever process, one
// succeeds.
hth_err hth_store_text_swap(hth_store *store, const char *key, const char *old, const char *value);

// hth_store_latest stores the newest version of a model that exists, 0: there is none.
// hth_store_has tells whether a version exists (0: any). Neither reads it.
hth_err hth_store_latest(hth_store *store, const char *name, int *version);
hth_err hth_store_has(hth_store *store, const char *name, int version, bool *has);

// An alias is a second name for a model (its newest version) or for one version: its target. Models
// and aliases share one name space. A target cannot be removed.
typedef struct hth_store_alias {
    char alias[201], name[201];
    int version; // 0: the newest
} hth_store_alias;
#define HTH_STORE_TARGET 216
// hth_store_alias_target writes the target as "name" or "name:version".
void hth_store_alias_target(const hth_store_alias *alias, char text[HTH_STORE_TARGET]);
// hth_store_alias_set creates an alias or moves it, atomically. *before (may be NULL) gets the
// previous target, name "" if there was none. HTH_ENOENT: the target does not exist; HTH_EEXIST: a
// model has the alias's name; HTH_EINVAL: the target is an alias, or the name is not valid.
hth_err hth_store_alias_set(hth_store *store, const hth_store_alias *alias,
                            hth_store_alias *before);
// hth_store_alias_rm removes an alias. HTH_ENOENT lists the existing ones.
hth_err hth_store_alias_rm(hth_store *store, const char *alias);
// hth_store_alias_get looks an alias up. HTH_ENOENT, without a sentence: no alias has this name.
hth_err hth_store_alias_get(hth_store *store, const char *alias, hth_store_alias *out);
// hth_store_alias_list stores an hth_alloc'd array of all aliases, sorted by name; the caller frees
// it with hth_free.
hth_err hth_store_alias_list(hth_store *store, hth_store_alias **out, int *n);
// hth_store_alias_free: HTH_EEXIST if an alias has this name, so that no new model can.
hth_err hth_store_alias_free(hth_store *store, const char *name);

// hth_store_change_count grows with every put and rm, and when an alias is moved, by any process: a
// cheap way to notice new versions.
uint64_t hth_store_change_count(hth_store *store);

#endif
