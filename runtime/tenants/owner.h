// SPDX-License-Identifier: Apache-2.0
// runtime/tenants/owner.h - whose a model is, and how much of a store is whose.
//
// A version says whose it is in its meta ("owner"), from the moment of its commit. A name is that
// of the tenant who made its first version: who may add one, keeps it so. What administrators make
// belongs to nobody, as all does that was stored before versions had owners: every role that may do
// something with models may do it with those. Any thread; what reads the store blocks.
#ifndef HTH_RUNTIME_TENANTS_OWNER_H
#define HTH_RUNTIME_TENANTS_OWNER_H

#include "modelstore/store.h"
#include "runtime/tenants/tenant_rules.h"

#include <jansson.h>

#define HTH_META_OWNER "owner"

// Who asks. In its place NULL: the server itself, who may do everything, for nobody.
typedef struct hth_caller {
    const char *tenant;
    bool admin;
    int64_t store_bytes; // what it may have in the store; HTH_TENANT_NEVER: that is not limited
} hth_caller;

// hth_owner_get stores whose the newest version of a model is; "": nobody's, or there is none.
hth_err hth_owner_get(hth_store *store, const char *name, char owner[HTH_TENANT]);
// hth_owner_is tells by a version's meta whether the caller may have its content.
bool hth_owner_is(const char *meta, const hth_caller *caller);
// hth_owner_may refuses with HTH_EDENIED what is another tenant's: `model` is "name",
// "name:version" or an alias; `what` says what was to be done with it ("export"). hth_owner_refuse
// is that refusal.
hth_err hth_owner_refuse(const char *name, const char *what);
hth_err hth_owner_may(hth_store *store, const char *model, const hth_caller *caller,
                      const char *what);
// hth_owner_new stores whose a new version of `name` by the caller is, "": nobody's. HTH_EDENIED:
// the name is another tenant's; or it is nobody's, and what the caller may have in the store is
// limited: what counts for nobody has no limit.
hth_err hth_owner_new(hth_store *store, const char *name, const hth_caller *caller,
                      char owner[HTH_TENANT]);
// hth_owner_meta is a version's meta with this owner, freed by hth_free; NULL: no memory.
char *hth_owner_meta(const char *meta, const char *owner);

// What a version is to be made of. meta_bytes: of a text that a client has written.
typedef struct hth_owner_put {
    const void *graph;
    size_t graph_bytes, meta_bytes;
    const hth_put_tensor *tensors;
    int n;
} hth_owner_put;

#define HTH_OWNER_TENSOR 64 // bytes that a tensor counts for in its version's record, with its name

// hth_owner_room refuses with HTH_EDENIED, and the numbers, a version for which `tenant` has no
// room left of the `most` bytes that it may have in models and datasets; each content counts once.
// A version's record counts as well: graph, text, list of tensors. A store has less room for
// records than for tensors.
// `but`: a name whose versions are not counted, for they are replaced; NULL: none.
hth_err hth_owner_room(hth_store *store, const char *tenant, int64_t most, const char *but,
                       const hth_owner_put *put);

#endif
