// SPDX-License-Identifier: Apache-2.0
// runtime/tenants/tenant_rules.h - what tenants may have of a server: the file that tenant.file
// names.
//
// A line is NAME and any of weight=N, memory=SIZE, waiting=N, jobs=N, uploads=SIZE, store=SIZE; #
// starts a comment. NAME is a token's name, uid:N of a user behind a Unix socket, http, network,
// embedded, hearth (the server's own), or * for each tenant without a line. What a line does not
// name is not limited. Any thread.
#ifndef HTH_RUNTIME_TENANTS_TENANT_RULES_H
#define HTH_RUNTIME_TENANTS_TENANT_RULES_H

#include "base/err.h"
#include "client/token.h"

#include <stddef.h>
#include <stdint.h>

#define HTH_TENANT       HTH_TOKEN_NAME // bytes of a name: a token's, or shorter
#define HTH_TENANT_NEVER INT64_MAX      // no limit

typedef struct hth_tenant_limits {
    double weight;        // of its engine time alongside others that wait; 1
    int64_t memory_bytes; // of the device, privately held
    int64_t waiting;      // requests
    int64_t jobs;         // at work at once
    int64_t upload_bytes; // of tensors that it has uploaded, and no version uses yet
    int64_t store_bytes;  // of datasets
} hth_tenant_limits;

typedef struct hth_tenant_rule {
    char name[HTH_TENANT];
    hth_tenant_limits limits;
} hth_tenant_rule;

typedef struct hth_tenant_rules {
    hth_tenant_rule *list;
    int n;
} hth_tenant_rules;

// hth_tenant_rules_parse reads a file's text, hth_tenant_rules_read a file; "" has none. HTH_EINVAL
// has the line. On success the caller owns *out, until hth_tenant_rules_fini; on error it is empty.
hth_err hth_tenant_rules_parse(const char *text, size_t n, hth_tenant_rules *out);
hth_err hth_tenant_rules_read(const char *path, hth_tenant_rules *out);
void hth_tenant_rules_fini(hth_tenant_rules *rules);
// hth_tenant_rules_of is what holds for `name`.
hth_tenant_limits hth_tenant_rules_of(const hth_tenant_rules *rules, const char *name);

#endif
