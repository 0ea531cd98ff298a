// SPDX-License-Identifier: Apache-2.0
// modelstore/store_impl.h - what the store's own files share.
#ifndef HTH_MODELSTORE_STORE_IMPL_H
#define HTH_MODELSTORE_STORE_IMPL_H

#include "modelstore/file.h"
#include "modelstore/index.h"
#include "modelstore/record.h"
#include "modelstore/store.h"

#include <sys/types.h>

#define HTH_STORE_FORMAT     1
#define HTH_STORE_NAME_MAX   200
#define HTH_STORE_INDEX_FILE "index/data.mdb"
#define HTH_STORE_LOCK                                                                             \
    "lock" // shared while a put makes files; held alone by gc and by the creation

typedef struct hth_memo hth_memo; // check.h

// What is being uploaded (upload_impl.h).
typedef struct hth_uploads {
    pthread_mutex_t lock;
    bool scanned; // what earlier processes have left is in the table
    struct hth_upload *by_key;
} hth_uploads;

// What requests ask for again and again, as of one commit of the index (hth_txn_seen).
#define HTH_STORE_RECENT 64
typedef struct hth_recent_alias {
    uint64_t commit;       // 0: nothing is here
    hth_store_alias alias; // its target's name "": no alias has that name
} hth_recent_alias;

typedef struct hth_store_recent {
    pthread_mutex_t lock;
    uint64_t commit, changes; // the change count
    hth_recent_alias alias[HTH_STORE_RECENT];
} hth_store_recent;

struct hth_store {
    hth_index index;
    int dir; // the directory's descriptor: renaming the directory does not disturb an open store
    bool read_only;
    int refs; // opens of the same directory by this process share one object: LMDB forbids a second
              // environment
    dev_t dev;
    ino_t ino;
    pthread_mutex_t memo_lock;
    hth_memo *memo; // objects that this process has read; guarded by memo_lock
    hth_store_recent recent;
    hth_uploads uploads;
    struct hth_store *next;
};

// The key of a version in VERSIONS; the first name_bytes + 1 bytes are the prefix of all versions
// of the model.
typedef struct hth_version_key {
    char text[HTH_STORE_NAME_MAX + 1 + 4];
    size_t bytes;
} hth_version_key;
hth_version_key hth_version_key_of(const char *name, int version);
// hth_version_key_parse reads a key back; HTH_ECORRUPT when it is none. `name` has
// HTH_STORE_NAME_MAX + 1 bytes.
hth_err hth_version_key_parse(const MDB_val *key, char *name, int *version);

// hth_store_last stores the newest version of a model that exists, 0 when there is none.
hth_err hth_store_last(hth_txn *txn, const char *name, int *version);
// hth_versions_absent makes the sentence for a version that is not there (0: any; `last` is the
// newest one, 0: no model): what is there instead. HTH_ENOENT.
hth_err hth_versions_absent(hth_txn *txn, const char *name, int version, int last);
// hth_store_changed adds one to the change count.
hth_err hth_store_changed(hth_txn *txn);
// hth_alias_find looks an alias up; HTH_ENOENT without a sentence. hth_alias_taken: HTH_EEXIST if
// an alias has the name. hth_alias_needs: HTH_EBUSY if removing a version (0: all) would remove the
// target of an alias; `left` versions of the model would remain.
typedef struct hth_alias_text {
    char text[HTH_STORE_TARGET];
} hth_alias_text;
hth_alias_text hth_alias_target(const hth_store_alias *alias); // hth_store_alias_target's
hth_err hth_alias_find(hth_txn *txn, const char *alias, hth_store_alias *out);
hth_err hth_alias_taken(hth_txn *txn, const char *name);
hth_err hth_alias_needs(hth_txn *txn, const char *name, int version, int left);
// hth_store_row reads a tensor's row; HTH_ENOENT without a sentence.
hth_err hth_store_row(hth_txn *txn, const hth_id *id, hth_tensor_row *out);
// hth_store_wall_ns is the time since 1970; hth_store_wall_set has it stand still, for a test (0:
// it goes on).
uint64_t hth_store_wall_ns(void);
void hth_store_wall_set(uint64_t ns);

// hth_uploads_forget frees the table of uploads; their files stay.
void hth_uploads_forget(hth_store *store);

#endif
