// SPDX-License-Identifier: Apache-2.0
// client/content/send.h - content to a server: what it lacks, in pieces, then a commit.
//
// The folder client/content/ carries models and datasets between files and a server that cannot see
// them: files are read and hashed (import.c, dataset.c, hash.h), what the server lacks is sent, and
// what it has is fetched and written to files (fetch.h, export_write.h). The server's side is
// server/rpc/rpc_slot_content.c and runtime/content/.
//
// Design notes
// The objects' ids are known. The server says which it has and how far the others are (Have), and
// gets what is missing in pieces (Put) of SEND_PIECE bytes. Several threads send, each a piece at a
// time, of the same object if it is large: a piece is under way while another is written, so the
// link is never idle. They stay within what the server takes out of order, so that what has to be
// sent again after a lost connection, or the death of either side, are those few pieces. A piece
// that gets lost has its object asked for anew, when no other of its pieces is under way, and is
// sent from there; who makes no progress in SEND_TRIES such attempts gives up.
//
// Small objects do not pay for a message each and come along with the commit, up to SEND_HERE bytes
// in all.
#ifndef HTH_CLIENT_CONTENT_SEND_H
#define HTH_CLIENT_CONTENT_SEND_H

#include "client/content/hash.h"
#include "client/content/objects.h"
#include "client/exchange.h"

typedef struct hth_content_source {
    hth_content_object *objects; // `here` is the sender's to set
    int n;
    // read stores `n` bytes, from `at` on, of the i-th object. Several threads at a time.
    hth_err (*read)(void *ctx, int i, uint64_t at, void *dst, size_t n);
    void *ctx;
    hth_content_ids *ids; // are being found; NULL: they are known
    int known;            // set by the sender: how many are, in the order of ids
    bool refused;         // .. by the server's store, for good
} hth_content_source;

// hth_content_send brings to the server what it lacks of the source's objects, but for those that
// it marks as `here`, which have to come along with what names the objects next. *moved grows by
// the bytes that are sent. What was sent stays there for a while, also on error.
hth_err hth_content_send(hearth *handle, hth_content_source *source, const hth_watch *watch,
                         uint64_t *moved);

typedef struct hth_content_version {
    const char *kind; // "dataset"; NULL: "model"
    const char *name, *meta;
    int max_batch;
    bool no_wait;
    const void *skeleton;
    size_t skeleton_bytes;
} hth_content_version;

// hth_content_send_version sends the objects and makes a version of a model of them. Blocks for as
// long as the link and an import take. Of what the server refuses nothing stays there; after
// HTH_ECANCELED, and where the connection is lost, what was sent stays for a while.
hth_err hth_content_send_version(hearth *handle, hth_content_source *source,
                                 const hth_content_version *version, const hth_watch *watch,
                                 hearth_import_report *out);

// hth_content_import imports an ONNX file that the client reads.
hth_err hth_content_import(hearth *handle, const char *path, hth_content_version *version,
                           const hth_watch *watch, hearth_import_report *out);

// hth_content_report is what a server said of an import.
void hth_content_report(const Hearth__Imported *imported, uint64_t moved,
                        hearth_import_report *out);

// ---- for who transfers content

// hth_content_lost tells whether an error is one of the connection, or of the moment: what failed
// may succeed when it is tried again.
bool hth_content_lost(hth_err err);
// hth_content_discard_sent has the server forget what was sent of a source for nothing.
void hth_content_discard_sent(hearth *handle, const hth_content_source *source);
// hth_content_list makes the data section that is a list of objects; the caller frees data by
// hth_free.
hth_err hth_content_list(const hth_content_object *objects, int n, size_t more,
                         hearth_tensor *section, uint64_t *list_bytes);

#endif
