// SPDX-License-Identifier: Apache-2.0
// server/scrub.h - hearthd's thread that reads all that is stored now and then
// (modelstore/scrub.h), when processor and disk have nothing else to do.
#ifndef HTH_SERVER_SCRUB_H
#define HTH_SERVER_SCRUB_H

#include "modelstore/store.h"

typedef struct hth_scrub hth_scrub;

// hth_scrub_open starts the thread; `store` must outlive it. One process for a store.
hth_err hth_scrub_open(hth_store *store, hth_scrub **out);
void hth_scrub_close(hth_scrub *scrub); // ends it, within a piece of a file; NULL is allowed

#endif
