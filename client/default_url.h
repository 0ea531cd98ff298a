// SPDX-License-Identifier: Apache-2.0
// client/default_url.h - where a machine's hearthd listens when nobody says otherwise, and whom of
// those who listen there a client may trust with its token and its tensors.
#ifndef HTH_CLIENT_DEFAULT_URL_H
#define HTH_CLIENT_DEFAULT_URL_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

// hth_default_url_socket writes the path of the i-th place to look, in order: /run/hearth.sock,
// /run/hearth/hearth.sock, hearth.sock in `runtime_dir`
// ($XDG_RUNTIME_DIR; may be NULL), /tmp/hearth-UID.sock. Returns `out`, or NULL after the last.
const char *hth_default_url_socket(int index, const char *runtime_dir, char *out, size_t cap);
// hth_default_url_trusts returns HTH_OK if a server answers at the socket `path`, and only root and
// the caller's own user could have put it there. system: the folder belongs to root, and the
// account to which root gave it may listen in it. HTH_ENOENT: there is no socket, or no server
// answers; HTH_EDENIED names the owner, and nothing was sent. After HTH_OK no other user can
// replace the socket.
hth_err hth_default_url_trusts(const char *path, bool system);
// hth_default_url_find writes the url of the first trusted server. HTH_ENOENT: there is none;
// HTH_EDENIED: there is only another user's.
hth_err hth_default_url_find(const char *runtime_dir, char *url, size_t cap);

#endif
