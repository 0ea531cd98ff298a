// SPDX-License-Identifier: Apache-2.0
// runtime/tenants/quota.h - how much of a device's memory a tenant may hold. Engine's thread only.
//
// Design notes
// A tenant holds what the ledger says is privately its own: weights that no other tenant's accounts
// use, its jobs' memory, and the largest arena of its active programs. A quota is a smaller device:
// what its jobs and pinned models leave of it is what its programs are planned for, and to make
// room in it the tenant's own programs are let go of, least recently used first, never others'.
// So a quota that is too small for a model's weights streams them, one that is too small for any
// plan is "never", and one that its own jobs and pins fill is "not now".
#ifndef HTH_RUNTIME_TENANTS_QUOTA_H
#define HTH_RUNTIME_TENANTS_QUOTA_H

#include "runtime/site.h"

// hth_quota_limit is what an account's tenant (NULL: nobody's) may hold; UINT64_MAX: all.
uint64_t hth_quota_limit(const hth_site *site, const hth_account *account);
// hth_quota_models is what the device has for a program of the account, within its tenant's limit.
uint64_t hth_quota_models(const hth_site *site, const hth_account *account);
// hth_quota_rest is what is left of the limit for a job, besides the tenant's other jobs and pins.
uint64_t hth_quota_rest(const hth_site *site, const hth_job_memory *mine);
// hth_quota_job adds to the result of planning a job, where it is the tenant's limit that it does
// not fit: HTH_ENODEVMEM: besides the tenant's other jobs and pins; HTH_ETOOBIG: never.
hth_err hth_quota_job(const hth_site *site, const hth_job_memory *mine, hth_err err);
// hth_quota_owner makes `tenant`, who asks for something of the account that has to be brought to
// the device, its owner, where it may hold more than the one who is.
void hth_quota_owner(const hth_site *site, hth_account *account, const char *tenant);
// hth_quota_room lets go of the tenant's programs until program can be made active within the
// limit. HTH_ENODEVMEM: that cannot be now, and site->refused_over is set.
hth_err hth_quota_room(hth_site *site, const hth_program *program);
// hth_quota_holds: HTH_ENODEVMEM: with what is active and resident now the tenant of `account` has
// more than it may, and nothing of it can go; site->refused_over is set. keep: a program that
// stays; may be NULL.
hth_err hth_quota_holds(hth_site *site, const hth_account *account, const hth_program *keep);

#endif
