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
// ($XDG_RUNTIME_DIR; may be NULL), /tmp/hearth-UID.sock. Returns `out`, or NULL behind the last.
const char *hth_default_url_socket(int i, const char *runtime_dir, char *out, size_t cap);
// hth_default_url_trusts: HTH_OK when somebody answers at the socket `path`, and nobody but root
// and the caller's own user could have put it there. system: the folder is root's, and whoever root
// gave it to may listen in it. HTH_ENOENT: there is no socket, or nobody answers; HTH_EDENIED says
// whose it is, and nothing was sent. Once it is HTH_OK, nobody else can take the socket's place.
hth_err hth_default_url_trusts(const char *path, bool system);
// hth_default_url_find writes the url of the first place whose server is trusted. HTH_ENOENT: there
// is none; HTH_EDENIED: there is one of somebody else's.
hth_err hth_default_url_find(const char *runtime_dir, char *url, size_t cap);

#endif
