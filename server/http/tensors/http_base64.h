// SPDX-License-Identifier: Apache-2.0
// server/http/tensors/http_base64.h - bytes in JSON (RFC 4648). Pure.
#ifndef HTH_SERVER_HTTP_TENSORS_HTTP_BASE64_H
#define HTH_SERVER_HTTP_TENSORS_HTTP_BASE64_H

#include "server/http/tensors/http_json.h"

// hth_base64_decode decodes whole groups of four; ends of lines may stand anywhere. `out` has room
// for bytes / 4 * 3 + 3 bytes. false: it is not base64.
bool hth_base64_decode(const char *text, size_t bytes, char *out, size_t *n);
// hth_base64_encode appends the text of `bytes` bytes, without quotes.
void hth_base64_encode(hth_text *out, const void *data, size_t bytes);

#endif
