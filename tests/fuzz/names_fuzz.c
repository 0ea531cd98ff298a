// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary texts to the reader of classes' names: what is read are as many names as it says,
// all UTF-8; nothing leaks.
#include "base/alloc.h"
#include "base/utf8.h"
#include "client/data/names.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static void fuzz_name(const char *name)
{
    size_t n = strlen(name), k;
    uint32_t code;
    for (size_t at = 0; at < n; at += k) {
        k = hth_utf8_next(name + at, n - at, &code);
        if (k == 0 || code == HTH_UTF8_NONE) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    int64_t live = hth_alloc_live();
    hth_class_names names;
    if (hth_class_names_parse((const char *)bytes, n, &names) == HTH_OK) {
        if (names.n < 1) {
            abort();
        }
        for (int i = 0; i < names.n; i++) {
            fuzz_name(names.name[i]);
        }
    }
    hth_class_names_fini(&names);
    if (hth_alloc_live() != live) {
        abort();
    }
    return 0;
}
