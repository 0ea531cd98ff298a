// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary bytes to the parser of a file of tokens, and to what clears sentences of paths.
// An accepted table has names and roles, and is found by no text that nobody hashed.
#include "client/token.h"
#include "server/net/auth.h"
#include "runtime/redact.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    hth_tokens t;
    char *text = malloc(n + 1), cleared[256];
    memcpy(text, bytes, n);
    if (hth_tokens_parse(text, n, &t) == HTH_OK) {
        for (int i = 0; i < t.n; i++) {
            if (t.list[i].name[0] == 0 || t.list[i].roles == 0 ||
                (t.list[i].roles & ~(unsigned)HTH_ROLE_ALL) != 0) {
                abort();
            }
        }
        hth_tokens_fini(&t);
    }
    text[n] = 0;
    hth_redact(text, cleared, sizeof cleared);
    if (strlen(cleared) >= sizeof cleared) {
        abort();
    }
    free(text);
    return 0;
}
