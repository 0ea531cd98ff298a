// SPDX-License-Identifier: Apache-2.0
// runtime/ledger.h - whose the bytes of a device are, to the byte. Engine's thread only.
//
// Design notes
// Nothing is counted while it happens: the ledger is read off what there is (the weights of all
// programs, the arena, the jobs' memory), and compared with what the pool says that it has handed
// out. So a byte that somebody forgot is found, not hidden.
//
//     used = private weights of all rows + shared weights, once + arena + jobs' memory + workspace
//     device = used + padding + free
#ifndef HTH_RUNTIME_LEDGER_H
#define HTH_RUNTIME_LEDGER_H

#include "base/hash.h"
#include "runtime/site.h"

typedef struct hth_ledger_row {
    const hth_account *account; // NULL: nobody's
    uint64_t private_bytes;     // resident weights that no other account uses
    uint64_t shared_bytes;      // .. that others use, too
    uint64_t held_bytes;        // of both: of active programs; the rest goes when room is needed
    uint64_t pinned_bytes;      // of both: of pinned programs
    uint64_t job_bytes;         // of a job: slots and arena
    uint64_t arena_bytes;       // largest arena of its programs that run in the device's
    uint64_t mapped_bytes;      // weights used where the store maps them
    uint64_t streamed_bytes;    // weights that come to the device for each use
    uint64_t host_bytes;        // copies in host memory: of those, and of what leaves the device
    int programs;
    int tenant;        // among the ledger's tenants; -1: nobody's
    UT_hash_handle hh; // by account
} hth_ledger_row;

// What a tenant's accounts have, each copy once.
typedef struct hth_ledger_tenant {
    char name[HTH_TENANT];
    uint64_t private_bytes; // resident weights that no other tenant uses
    uint64_t shared_bytes;  // .. that others use, too
    uint64_t job_bytes;
    uint64_t arena_bytes; // largest arena of its active programs that run in the device's
} hth_ledger_tenant;

typedef struct hth_ledger {
    hth_ledger_row *rows; // accounts with programs or memory
    int n;
    hth_ledger_row *by_account; // the same: there may be thousands
    hth_ledger_tenant *tenants;
    int n_tenants;
    uint64_t private_bytes, shared_bytes, mapped_bytes; // of all rows, each copy once
    uint64_t unclaimed_bytes; // resident weights that no program there is wants: 0
    uint64_t arena_bytes, job_bytes, host_bytes;
    hth_pool_ledger pool;
    int64_t difference; // what the pool has handed out besides all that: 0
} hth_ledger;

// hth_ledger_read makes the ledger as it is now; freed by hth_ledger_fini. HTH_ENOMEM.
hth_err hth_ledger_read(const hth_site *site, hth_ledger *out);
void hth_ledger_fini(hth_ledger *ledger);
// hth_ledger_row_of finds an account's row; NULL: it has nothing.
const hth_ledger_row *hth_ledger_row_of(const hth_ledger *ledger, const hth_account *account);

#endif
