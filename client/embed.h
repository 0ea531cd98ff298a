// SPDX-License-Identifier: Apache-2.0
// client/embed.h - a whole server inside this process. Declared by the client, which needs it for
// "inproc://", and implemented by server/embed.c, so that the client includes nothing of the
// server.
#ifndef HTH_CLIENT_EMBED_H
#define HTH_CLIENT_EMBED_H

#include "base/err.h"

#include <stdbool.h>

typedef struct hth_embedded hth_embedded;

// hth_embed_open starts store, engine and dispatcher, listening on a url that no other has.
// `device` NULL: "cpu". On error *out is NULL and nothing is held.
hth_err hth_embed_open(const char *store, const char *device, hth_embedded **out);
const char *hth_embed_url(const hth_embedded *embedded); // valid until close
// hth_embed_close answers what was accepted. Requests that take longer than drain.seconds are
// canceled; if they do not end then either, their server is abandoned, not freed. NULL is allowed.
void hth_embed_close(hth_embedded *embedded);

// hth_embed_data answers "plan", or "curve", about a planning problem (the argument "problem" is
// its file), or about a training step of an ONNX file ("model" is its path) for the device of a
// profile. It needs neither store nor device, and blocks while it plans. On success *json is the
// caller's, freed by hth_free.
hth_err hth_embed_data(bool curve, const char *arguments, char **json);

#endif
