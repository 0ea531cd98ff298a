// SPDX-License-Identifier: Apache-2.0
// modelstore/object.h - the files of stored tensors: looked at, opened, and read to their end.
//
// What a file's name leads to may be anything by now: a link, a folder, a FIFO. Only a regular file
// of the right size is opened. It is read, not mapped: a sector that the disk cannot read is an
// error here, and the end of the process (SIGBUS) in a mapping.
#ifndef HTH_MODELSTORE_OBJECT_H
#define HTH_MODELSTORE_OBJECT_H

#include "modelstore/store_impl.h"

// Which file it was, and in what state. A file that is written to, replaced or copied is another;
// bytes that rot on the disk leave it as it was.
typedef struct hth_object_seen {
    uint64_t ino, bytes;
    int64_t written_ns, changed_ns; // mtime, ctime
} hth_object_seen;

struct stat;
hth_object_seen hth_object_seen_of(const struct stat *st);
bool hth_object_same(const hth_object_seen *a, const hth_object_seen *b);

// hth_object_look looks at the file of a tensor of `bytes` bytes. HTH_ECORRUPT: it is missing, no
// regular file, or of another size; the sentence names the file.
hth_err hth_object_look(const hth_store *store, const hth_id *id, uint64_t bytes,
                        hth_object_seen *out);
// hth_object_open opens it for reading, with the same errors. direct: past the system's cache,
// where the file system can; it is then read by hth_object_read only. The caller closes *fd.
hth_err hth_object_open(const hth_store *store, const hth_id *id, uint64_t bytes, bool direct,
                        int *fd, hth_object_seen *seen);
// hth_object_read reads the `bytes` bytes of an open file in pieces, in order, each handed to
// `take` with its offset; an error of take's ends the reading. HTH_ECORRUPT: bytes that cannot be
// read, or are not there any more.
typedef hth_err (*hth_object_take)(void *ctx, const void *data, uint64_t at, size_t bytes);
hth_err hth_object_read(int fd, const hth_id *id, uint64_t bytes, hth_object_take take, void *ctx);

typedef hth_err (*hth_object_tick)(void *ctx, size_t bytes);
typedef struct hth_object {
    hth_id id;
    hth_dtype dtype;
    hth_shape shape;
    uint64_t bytes;
} hth_object;
// hth_object_is_file tells whether a tensor has a file, or its bytes are in the index. HTH_ENOENT:
// the store does not list it; without a sentence. hth_object_inlined does the same for hth_verify,
// and compares bytes in the index with the id. HTH_ECORRUPT: they are not what they have to be, or
// the index does not list the tensor, or as another.
hth_err hth_object_is_file(hth_store *store, const hth_id *id, bool *file);
hth_err hth_object_inlined(hth_store *store, const hth_object *object, bool *inlined);
// hth_object_check reads a tensor's file and compares its content with `id`. HTH_ECORRUPT: it is
// not that; what `tick` (may be NULL; called after each piece) fails with. *seen is the file that
// was read, zero when there was none.
hth_err hth_object_check(const hth_store *store, const hth_object *object, bool direct,
                         hth_object_tick tick, void *ctx, hth_object_seen *seen);

#endif
