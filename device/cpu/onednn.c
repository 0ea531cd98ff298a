// SPDX-License-Identifier: Apache-2.0
// Opens libhearth_dnnl.so, once.
#include "device/cpu/onednn.h"

#include "base/alloc.h"
#include "base/log.h"
#include "base/settings.h"
#include "device/cpu/isa_claim.h"
#include "device/plugin.h"

#include <pthread.h>
#include <string.h>

static const hth_onednn *onednn;
static pthread_once_t onednn_once = PTHREAD_ONCE_INIT;

static hth_err onednn_fail(hth_err err, const char *sentence)
{
    return hth_fail(err, "%s", sentence);
}

static const hth_onednn_host onednn_host = {
    .fail = onednn_fail,
    .calloc = hth_calloc,
    .free = hth_free,
    .vector_bytes = hth_isa_claim_onednn,
    .team = &hth_team_openmp,
};

static hth_err onednn_load(void)
{
    char wanted[HTH_SETTING_TEXT];
    if (strcmp(hth_setting_text(HTH_SET_ONEDNN, wanted), "false") == 0) {
        return hth_fail(HTH_ENOTSUP, "kernels.onednn is false");
    }
    hth_onednn_entry *entry;
    HTH_TRY(hth_plugin_open(HTH_ONEDNN_FILE, HTH_ONEDNN_ENTRY, (void **)&entry));
    const hth_onednn *found = entry(HTH_ONEDNN_ABI, &onednn_host);
    if (found == NULL || found->abi != HTH_ONEDNN_ABI) {
        return hth_fail(HTH_ENOTSUP, "%s belongs to another version of hearth", HTH_ONEDNN_FILE);
    }
    onednn = found;
    return HTH_OK;
}

static void onednn_open(void)
{
    if (onednn_load() != HTH_OK) {
        hth_log(WARN, DEVICE, "no-onednn", "no oneDNN, so convolutions are slower: %s",
                hth_err_detail());
    } else if (!onednn->our_threads) {
        hth_log(WARN, DEVICE, "openmp",
                "oneDNN uses the threads of an OpenMP runtime that was loaded before");
    }
}

const hth_onednn *hth_onednn_get(void)
{
    pthread_once(&onednn_once, onednn_open);
    return onednn;
}
