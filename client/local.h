// SPDX-License-Identifier: Apache-2.0
// client/local.h - where a machine's hearthd listens when nobody says otherwise.
#ifndef HTH_CLIENT_LOCAL_H
#define HTH_CLIENT_LOCAL_H

#include <stddef.h>

// hth_local_socket writes the path of the i-th place to look, in order: /run/hearth.sock,
// hearth.sock in `runtime_dir`
// ($XDG_RUNTIME_DIR; may be NULL), /tmp/hearth-UID.sock. Returns `out`, or NULL behind the last.
const char *hth_local_socket(int i, const char *runtime_dir, char *out, size_t cap);

#endif
