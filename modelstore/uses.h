// SPDX-License-Identifier: Apache-2.0
// modelstore/uses.h - which tensors the versions use, counted from their records: the counts in the
// index (hth_tensor_row.refs) are only a copy of that.
#ifndef HTH_MODELSTORE_USES_H
#define HTH_MODELSTORE_USES_H

#include "modelstore/check.h"

typedef struct hth_use hth_use;
typedef struct hth_uses {
    hth_use *by_id;
    int unreadable;    // records that are not as they were stored: what they use is not known
    char example[224]; // one of their versions
} hth_uses;

// hth_uses_count goes through all records; *uses is zero, or freed. HTH_ENOMEM, or what the index
// fails with; *uses is the caller's to free in any case.
hth_err hth_uses_count(hth_txn *txn, hth_uses *uses);
uint32_t hth_uses_of(const hth_uses *uses, const hth_id *id); // versions that use it
void hth_uses_fini(hth_uses *uses);

#endif
