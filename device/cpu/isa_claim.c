// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/isa_claim.h"

#include "base/isa.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    int n, bytes;    // devices, and the set that they asked for
    char device[32]; // the first of them
    bool computes;   // oneDNN has, for devices ..
    int onednn;      // .. that asked for this set
} claimed = {.lock = PTHREAD_MUTEX_INITIALIZER};

typedef struct claim_text {
    char text[16];
} claim_text;

static claim_text claim_name(int bytes)
{
    claim_text t = {"no isa"};
    if (bytes > 0) {
        snprintf(t.text, sizeof t.text, "isa=%s", hth_isa_name(bytes));
    }
    return t;
}

static hth_err claim_check(const char *device, int bytes)
{
    if (claimed.n > 0 && claimed.bytes != bytes) {
        return hth_fail(HTH_EBUSY,
                        "device %s has %s, but %s in the same process has %s: each set needs a "
                        "process of its own, as hearthd gives to devices",
                        device, claim_name(bytes).text, claimed.device,
                        claim_name(claimed.bytes).text);
    }
    if (claimed.n == 0 && bytes > hth_isa_bytes()) {
        return hth_fail(HTH_ENOTSUP, "device %s has %s, but the widest set here is %s", device,
                        claim_name(bytes).text, hth_isa_name(hth_isa_bytes()));
    }
    if (claimed.computes && claimed.onednn != bytes) {
        return hth_fail(HTH_EBUSY,
                        "device %s has %s, but oneDNN computed for a device with %s in this "
                        "process, and cannot change",
                        device, claim_name(bytes).text, claim_name(claimed.onednn).text);
    }
    return HTH_OK;
}

hth_err hth_isa_claim(const char *device, int bytes)
{
    pthread_mutex_lock(&claimed.lock);
    hth_err err = claim_check(device, bytes);
    if (err == HTH_OK && claimed.n++ == 0) {
        claimed.bytes = bytes;
        snprintf(claimed.device, sizeof claimed.device, "%s", device);
        hth_isa_use(bytes);
    }
    pthread_mutex_unlock(&claimed.lock);
    return err;
}

void hth_isa_unclaim(void)
{
    pthread_mutex_lock(&claimed.lock);
    if (--claimed.n == 0) {
        hth_isa_use(0);
    }
    pthread_mutex_unlock(&claimed.lock);
}

int hth_isa_claim_onednn(void)
{
    pthread_mutex_lock(&claimed.lock);
    claimed.computes = true;
    claimed.onednn = hth_isa_used();
    int limit = claimed.onednn > 0 || hth_isa_bytes() < 64 ? hth_isa_bytes() : 0;
    pthread_mutex_unlock(&claimed.lock);
    return limit;
}
