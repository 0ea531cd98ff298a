// SPDX-License-Identifier: Apache-2.0
// modelstore/upload.h - content that arrives in pieces, named by its id, before a version needs it.
//
// Design notes
// An object that is being uploaded is a file in tmp/, named by its id and its owner, into which
// pieces are written while they are hashed. How far it is, is known without an index: the first
// bytes are there, and pieces that came early lie at most HTH_UPLOAD_AHEAD bytes beyond them. So a
// process that finds such a file hashes all but its last HTH_UPLOAD_AHEAD bytes and goes on there.
// A whole object is compared with its id, and removed where it is not that; one that is waits,
// referenced by nothing, until a put names it (hth_put_tensor.id), it is discarded, or nobody has
// asked for it for store.upload_seconds.
//
// Several writers of one owner may send the same object: each is told where it stands. Owners have
// files of their own: none can spoil another's upload, or learn of it. Another process that writes
// the same file is noticed by the file's state, and what is there is hashed anew.
#ifndef HTH_MODELSTORE_UPLOAD_H
#define HTH_MODELSTORE_UPLOAD_H

#include "modelstore/store.h"

#define HTH_UPLOAD_WHOLE       UINT64_MAX
#define HTH_UPLOAD_PIECE_BYTES ((size_t)8 << 20)   // of a piece, at most
#define HTH_UPLOAD_AHEAD       ((uint64_t)2 << 20) // how far one may end beyond what is there
// What an object counts at least in what an owner may upload: it costs a file.
#define HTH_UPLOAD_LEAST_BYTES ((uint64_t)64 << 10)

// hth_store_sees tells by a version's name and meta whether the caller may read its tensors; NULL
// in its place: any.
typedef bool (*hth_store_sees)(void *ctx, const char *name, const char *meta);

// hth_upload_have stores, for each of n objects (names are ignored), HTH_UPLOAD_WHOLE where a
// version that `sees` allows has it, whole on disk and with this dtype and shape, or `owner` has
// uploaded it; else how many of its first bytes are there. What it finds counts as asked for now.
// Reads what an earlier process has left of uploads. Any thread; blocks. HTH_EINVAL: what an object
// says of itself is impossible.
hth_err hth_upload_have(hth_store *store, const char *owner, hth_store_sees sees, void *ctx,
                        const hth_manifest_tensor *objects, int n, uint64_t *there);

// hth_upload_put writes `n` bytes of an object, from `at` on, and stores how many of its first
// bytes are there then, HTH_UPLOAD_WHOLE: all, and they are what they have to be. Bytes that are
// there already are not written again. most: bytes that uploads of this owner may have, with this
// one as a whole. Any thread; blocks.
// HTH_EINVAL: the piece leaves a gap, or lies outside the object; HTH_ETOOBIG: it is too large, or
// the object is for `most` or store.upload_bytes; HTH_ECORRUPT: the object is not what its id says;
// HTH_EIO: the disk is full, or fails. Of an object that failed so (the last two) nothing is left.
hth_err hth_upload_put(hth_store *store, const char *owner, uint64_t most,
                       const hth_manifest_tensor *object, uint64_t at, const void *data, size_t n,
                       uint64_t *there);
// hth_upload_discard removes what the owner has uploaded of these objects.
hth_err hth_upload_discard(hth_store *store, const char *owner, const hth_manifest_tensor *objects,
                           int n);

// hth_upload_read stores `n` bytes, from `at` on, of an object that the store lists, or that
// `owner` (NULL: nobody) has uploaded as a whole. Any thread; blocks. HTH_ENOENT: neither is so;
// HTH_ECORRUPT: the store's is damaged; HTH_EINVAL: it has not as many bytes.
hth_err hth_upload_read(hth_store *store, const char *owner, const hth_manifest_tensor *object,
                        uint64_t at, void *dst, size_t n);

// What uploads there are: objects that no version has named, and their bytes on disk.
typedef struct hth_upload_state {
    uint64_t objects, bytes;
} hth_upload_state;
hth_err hth_upload_state_get(hth_store *store, hth_upload_state *out);

#endif
