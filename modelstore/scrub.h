// SPDX-License-Identifier: Apache-2.0
// modelstore/scrub.h - everything that is stored is read now and then, without haste: bytes rot
// where nobody looks.
//
// Design notes
// A tensor's file is due when three quarters of store.scrub_days have gone by since it was read
// last, by whomever, when it was never read, or when it has changed since: the last quarter is for
// reading. When that was is kept with each tensor (check.h), so a pass that is interrupted, by
// whatever, has lost nothing but the last few files, and the next one goes on with those that were
// read longest ago. At most store.scrub_rate bytes are read in a second. The index, with what is in
// it, is small, compared with itself once a day, and copied then, if all of it is right and
// something has changed.
#ifndef HTH_MODELSTORE_SCRUB_H
#define HTH_MODELSTORE_SCRUB_H

#include "modelstore/store.h"

typedef struct hth_scrub_result {
    uint64_t tensors, bytes; // that were read
    uint64_t damaged;        // of them, and of the index
    uint64_t next_ns;        // when something is due next, since 1970; UINT64_MAX: nothing ever is
} hth_scrub_result;

// hth_scrub_pass reads what is due; nothing, where store.scrub_days is 0. `wait` waits for `ns`
// nanoseconds, or returns HTH_ECANCELED, which ends the pass. A file that cannot be read keeps no
// other from it: the first one's error is returned in the end. HTH_ECORRUPT: the index's pages are
// damaged, and nothing was read. *out is filled on an error, too.
hth_err hth_scrub_pass(hth_store *store, hth_err (*wait)(void *ctx, uint64_t ns), void *ctx,
                       hth_scrub_result *out);

#endif
