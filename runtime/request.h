// SPDX-License-Identifier: Apache-2.0
// runtime/request.h - a request to an engine, and its answer: an inference, or a command with JSON
// arguments. engine/engine.h takes them; what binds, places and runs their tensors lies here.
#ifndef HTH_RUNTIME_REQUEST_H
#define HTH_RUNTIME_REQUEST_H

#include "base/err.h"
#include "graph/tensor.h"
#include "runtime/command.h"

#include <stdatomic.h>

#define HTH_TENANT_OWN "hearth" // of what nobody asked for

// A tensor of a request. On an output t.data belongs to the submitter, always: NULL until `place`
// has set it.
#define HTH_CLIENT_FILES  3
#define HTH_REQUEST_FILES 4

typedef struct hth_request_tensor {
    const char *name; // borrowed; NULL on an input: the model's only one
    hth_tensor t;
    // of an output, while place is called: memory that holds the result already and that the
    // submitter may keep until hth_engine_release, by setting t.data to it; NULL: there is none
    void *offered;
} hth_request_tensor;

// From here on a tensor is worth being computed on where it lies in a client's memory.
#define HTH_SHARED_BYTES (64u << 10)

// hth_shared_in_place tells whether an input or output is computed on where it lies in memory into
// which its client may write at any time: large ones whose values never steer an address or a
// shape. All others are copied from there before anybody looks at them, and to there afterwards.
static inline bool hth_shared_in_place(const hth_tensor *tensor)
{
    return hth_dtype_is_float(tensor->dtype) && tensor->bytes > HTH_SHARED_BYTES;
}

typedef struct hth_request hth_request;
typedef struct hth_ipc_record hth_ipc_record;
typedef struct hth_retained hth_retained; // outputs that stay where the engine's process put them

// What a request on its caller's thread leaves for after its turn of the engine: copies of inputs
// to outputs that are the same, for which nobody has to wait, and then `done`.
#define HTH_LEFTOVER_COPIES 4
typedef struct hth_leftover {
    int n;
    struct {
        void *to;
        const void *from;
        size_t bytes;
    } copy[HTH_LEFTOVER_COPIES];
    bool answered;
} hth_leftover;

// Where a request is, for the router between several engines (router.h).
typedef struct hth_route {
    void *router, *model, *group;
    void (*done)(hth_request *request); // the submitter's
    int device;
    uint32_t tried; // devices, by bits
    uint32_t later; // of these, that had no memory now, and did not have it wait
    int older;      // of a load: the version that still answers on a device where it failed
} hth_route;

struct hth_request {
    // what, filled by the submitter; everything borrowed until done
    const char *model; // "name" or "name:version"; NULL for a command
    char target
        [216]; // set when submitted with an alias: its target, which `model` then names; else ""
    const hth_request_tensor *inputs;
    int n_inputs;
    // an inference's model, inputs and limits as a record (base/ipc/ipc_record.h) that was checked,
    // in memory of hth_engine_alloc: an engine in another process reads it there, and it is this
    // engine's to say in it where the inputs are. NULL: there is none
    hth_ipc_record *record;
    uint32_t priority;   // in the queue: 1 comes first; 0: the model's default
    uint64_t timeout_us; // to wait in the queue before HTH_ETIMEDOUT; 0: the model's default
    uint64_t waited_ns;  // before it was submitted: counts as waiting in the queue
    bool at_once;        // too little memory now is an answer, and not waited for
    // place is called once on the engine's thread when the outputs' names, dtypes, shapes and bytes
    // are known, and sets every out[i].t.data to memory of the submitter (64-byte alignment is
    // welcome, not needed) or to out[i].offered; in the former the results are written. The
    // submitter's memory must last until `done`.
    hth_err (*place)(hth_request *request, hth_request_tensor *out, int n_out);
    // The submitter can read outputs where another process has put them: they are offered to place.
    bool keeps;
    // outputs whose place is known before, in memory that was shared (hth_engine_share): name,
    // data, and bytes that there is room for; place has to say the same. Only a hint, may be NULL
    const hth_request_tensor *known;
    int n_known;
    // a command (runtime/command.h) with JSON arguments; HTH_COMMAND_NONE: an inference
    hth_command_id command;
    const char *arguments;
    // of a command: descriptors that its arguments name by their index; borrowed until done. A
    // client passes at most HTH_CLIENT_FILES
    int files[HTH_REQUEST_FILES], n_files;
    // of "train": 1 + which member of a group it is, 0: none. The group's region is the last of the
    // files; of a rank the arguments say which of them its exchange is (runtime/arguments.h)
    int member;
    void (*progress)(hth_request *request, const char *what, uint64_t done,
                     uint64_t total);   // may be NULL; engine's thread
    void (*done)(hth_request *request); // called exactly once; r may be freed in it
    void *ctx;
    const char *tenant;  // who asks ("uid:1000", a token's name, "http"); NULL: the server itself
    bool admin;          // .. and may see and change jobs of others; set for commands
    bool own;            // the server asks in the tenant's name: nobody waits for the answer
    uint32_t crashes;    // of processes that were at work on it: "train" goes on where it was
    bool joined;         // the engine's: a rank that has begun to exchange with the others
    atomic_int canceled; // set by anyone: HTH_ECANCELED, at the latest at the next operator
    // of what it is a part, and is canceled with; outlives it. NULL: of nothing
    const hth_request *whole;
    // answer
    hth_err err;
    char detail[512];
    hth_request_tensor *outputs; // what place filled; valid until done returns
    int n_outputs;
    hth_retained
        *retained; // not NULL: place took an offer; `done` takes it over (hth_engine_release)
    // of the model that answered; of a load that failed because a newer version was refused: the
    // one that still answers, 0: none
    int version;
    bool batched; // its outputs' first dimension is a batch
    char *json;   // answer of a command, hth_alloc'd: `done` takes it over
    uint64_t submitted_ns, started_ns, finished_ns;
    hth_request *next;   // the engine's
    hth_leftover *later; // .. of one on its caller's thread, for as long; NULL: it is not
    hth_route route;     // the router's
};

// hth_request_canceled is where it stands that a request is canceled. Only a command may be a part.
static inline const atomic_int *hth_request_canceled(const hth_request *request)
{
    return request->whole != NULL ? &request->whole->canceled : &request->canceled;
}

#endif
