// SPDX-License-Identifier: Apache-2.0
// modelstore/upload_impl.h - the inside of upload.h: the table of uploads (upload.c), the file of
// one (upload_file.c), and what a put takes of them (put_upload.c).
#ifndef HTH_MODELSTORE_UPLOAD_IMPL_H
#define HTH_MODELSTORE_UPLOAD_IMPL_H

#include "base/hash.h"
#include "modelstore/object.h"
#include "modelstore/upload.h"

#include <pthread.h>
#include <stdatomic.h>

#define HTH_UPLOAD_PARTS 16 // that came early

typedef struct hth_upload_key {
    hth_id id;
    uint64_t owner; // the first bytes of its name's SHA-256
} hth_upload_key;

typedef struct hth_upload_part {
    uint64_t from, to;
} hth_upload_part;

typedef struct hth_upload {
    hth_upload_key key;
    UT_hash_handle hh;
    int refs;                        // under the table's lock
    atomic_bool gone;                // out of the table: freed with its last reference
    atomic_uint_fast64_t counted;    // bytes that it is to have; its file's, until a piece comes
    atomic_uint_fast64_t touched_ns; // wall clock
    pthread_mutex_t lock;            // guards what follows
    bool known;                      // what it is
    hth_dtype dtype;
    hth_shape shape;
    uint64_t bytes;
    bool whole;      // and compared with its id
    hth_id_sum *sum; // of the first `there` bytes; NULL: of none, or it is whole
    uint64_t there;
    hth_upload_part part[HTH_UPLOAD_PARTS];
    int n_parts;
    hth_object_seen seen; // the file's state when all this was so
} hth_upload;

// upload.c
hth_path hth_upload_path(const hth_upload_key *key);
// hth_upload_parse reads a name in tmp/ back; false: it is no upload's.
bool hth_upload_parse(const char *name, hth_upload_key *out);
// hth_upload_find holds what `owner` has uploaded of an object; *out NULL: nothing. The caller
// holds the store's lock file shared, and releases *out.
hth_err hth_upload_find(hth_store *store, const char *owner, const hth_id *id, hth_upload **out);
void hth_upload_rele(hth_store *store, hth_upload *upload);
// hth_upload_drop removes it from the table, and its file. The sentence of an earlier error stays.
void hth_upload_drop(hth_store *store, hth_upload *upload);
// hth_upload_check: HTH_EINVAL, there can be no such object.
hth_err hth_upload_check(const hth_manifest_tensor *object);
// hth_upload_sound tells whether the index lists a tensor, and whether it can be used.
hth_err hth_upload_sound(hth_store *store, const hth_manifest_tensor *object, bool *listed,
                         bool *sound);
// hth_upload_collect removes a file of gc's `tmp/NAME` if it is no upload, or one that has expired;
// *removed tells. gc holds the lock file alone.
hth_err hth_upload_collect(hth_store *store, const char *name, uint64_t *bytes, bool *removed);

// upload_file.c; under the upload's lock
// hth_upload_look brings what is known of an upload into step with its file: dtype and shape are
// `object`'s, and of a file in another state than it was left in, what is there is hashed. Of one
// that is gone nothing is there. HTH_EINVAL: it is known as another object.
hth_err hth_upload_look(hth_store *store, hth_upload *upload, const hth_manifest_tensor *object);
// hth_upload_write writes a piece that was checked, after hth_upload_look.
hth_err hth_upload_write(hth_store *store, hth_upload *upload, const hth_manifest_tensor *object,
                         uint64_t at, const void *data, size_t n);
// hth_upload_touch has the file count as asked for now.
void hth_upload_touch(hth_store *store, hth_upload *upload);
void hth_upload_forget(hth_upload *upload); // what is known of its bytes

#endif
