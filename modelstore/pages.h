// SPDX-License-Identifier: Apache-2.0
// modelstore/pages.h - whether the pages of an LMDB file are what LMDB takes them for.
//
// Design notes
// LMDB maps its file and believes it: a bit that has flipped in a page's header, or a file that was
// cut, ends the process that touches it (SIGSEGV, SIGBUS, or a failed assertion), at every start
// anew; one in the list of free pages has the next commit overwrite what is in use. So before a
// store's index is used each page that is in use is looked at once, in the file: that it lies in
// it, that it is of the kind that belongs there, that its nodes lie in it, one after the other,
// that keys are in order, and that no page is used twice or free. What is in the nodes has sums of
// its own (check.h). This knows the format of LMDB 0.9 (data version 1), and says nothing about
// another.
#ifndef HTH_MODELSTORE_PAGES_H
#define HTH_MODELSTORE_PAGES_H

#include "base/err.h"

#include <lmdb.h>

// hth_pages_check looks at the pages of the snapshot that the read transaction `txn` of `env` sees;
// `env` has no tables whose keys are not ordered by their bytes, nor several values for one.
// Writers may go on meanwhile. HTH_ECORRUPT says which page is damaged; HTH_EBUSY: the snapshot is
// no longer one of the file's two newest, begin again.
hth_err hth_pages_check(MDB_env *env, MDB_txn *txn);

#endif
