// SPDX-License-Identifier: Apache-2.0
// runtime/command.h - the commands of an engine: all that can be asked of one besides inference.
//
// Design notes
// The table below is the one place that knows all commands: a command is a row, and everything that
// depends on which command it is stands in the row or is bound to it by its name at compile time.
// On the wire a command is its name; hth_command_find turns it into the enum once, where a request
// enters, and nothing else compares names (build-aux/layers.sh). The columns:
//
//   ID, name    HTH_COMMAND_ID; the name on the wire. Whoever answers the command has a function
//               PREFIX_name, and does not compile without it: a section is who answers.
//   need        what its caller must be allowed to (client/token.h)
//   traits      HTH_COMMAND_SHORT, ..
//   asked       which devices a router asks: all (those that are there), each (the same, and one
//               failing fails it), having (those with the model), one (of them), load, train, job
//               (where they are to be or are); none: it does not get there
//   merge       how a router makes one answer of several: merge_MERGE of router_merge.c
//   takes       its arguments (HTH_ARGUMENT_TABLE) whose types are checked; train refuses others
//   required    those of them without which it is refused
#ifndef HTH_RUNTIME_COMMAND_H
#define HTH_RUNTIME_COMMAND_H

#include "client/token.h"

#include <stdbool.h>
#include <stdint.h>

// ---- arguments: each means the same in every command, but "keep": whether a model stays loaded,
// or whose parameters a job's result has

// ANY: a document, a file or a number whose reader says what is wrong with it.
typedef enum hth_argument_type {
    HTH_ARGUMENT_ANY = 0,
    HTH_ARGUMENT_TEXT = 1,
    HTH_ARGUMENT_NUMBER = 2,
    HTH_ARGUMENT_SWITCH = 4,
    HTH_ARGUMENT_TEXTS = 8,
} hth_argument_type;

// clang-format off
#define HTH_ARGUMENT_TABLE(X)                                                                      \
    X(ACCUMULATE,       "accumulate",       HTH_ARGUMENT_TEXT | HTH_ARGUMENT_NUMBER)               \
    X(AFTER,            "after",            HTH_ARGUMENT_TEXT | HTH_ARGUMENT_NUMBER)               \
    X(AGAIN,            "again",            HTH_ARGUMENT_SWITCH)                                   \
    X(ALIAS,            "alias",            HTH_ARGUMENT_TEXT)                                     \
    X(ALL,              "all",              HTH_ARGUMENT_SWITCH)                                   \
    X(BATCH,            "batch",            HTH_ARGUMENT_NUMBER)                                   \
    X(BETA1,            "beta1",            HTH_ARGUMENT_ANY)                                      \
    X(BETA2,            "beta2",            HTH_ARGUMENT_ANY)                                      \
    X(BUDGET,           "budget",           HTH_ARGUMENT_TEXT)                                     \
    X(CHECKPOINT_EVERY, "checkpoint-every", HTH_ARGUMENT_ANY)                                      \
    X(CLASS_AXIS,       "class-axis",       HTH_ARGUMENT_NUMBER)                                   \
    X(CLASS_WEIGHTS,    "class-weights",    HTH_ARGUMENT_ANY)                                      \
    X(CLIP,             "clip",             HTH_ARGUMENT_ANY)                                      \
    X(CROP,             "crop",             HTH_ARGUMENT_NUMBER)                                   \
    X(DATA,             "data",             HTH_ARGUMENT_ANY)                                      \
    X(DELAY_US,         "delay_us",         HTH_ARGUMENT_ANY)                                      \
    X(DETACH,           "detach",           HTH_ARGUMENT_SWITCH)                                   \
    X(EPOCHS,           "epochs",           HTH_ARGUMENT_ANY)                                      \
    X(EPS,              "eps",              HTH_ARGUMENT_ANY)                                      \
    X(EVAL,             "eval",             HTH_ARGUMENT_ANY)                                      \
    X(EXCHANGE,         "exchange",         HTH_ARGUMENT_ANY)                                      \
    X(FLIP,             "flip",             HTH_ARGUMENT_SWITCH)                                   \
    X(FREEZE,           "freeze",           HTH_ARGUMENT_TEXTS)                                    \
    X(HOLD_OUT,         "hold-out",         HTH_ARGUMENT_ANY)                                      \
    X(ID,               "id",               HTH_ARGUMENT_NUMBER)                                   \
    X(INIT,             "init",             HTH_ARGUMENT_TEXT)                                     \
    X(ITERATIONS,       "iterations",       HTH_ARGUMENT_ANY)                                      \
    X(JOB,              "job",              HTH_ARGUMENT_TEXT)                                     \
    X(K,                "k",                HTH_ARGUMENT_ANY)                                      \
    X(KEEP,             "keep",             HTH_ARGUMENT_SWITCH | HTH_ARGUMENT_TEXT)               \
    X(KIND,             "kind",             HTH_ARGUMENT_TEXT)                                     \
    X(LABEL_SMOOTHING,  "label-smoothing",  HTH_ARGUMENT_ANY)                                      \
    X(LOSS,             "loss",             HTH_ARGUMENT_TEXT)                                     \
    X(LR,               "lr",               HTH_ARGUMENT_ANY)                                      \
    X(MAX,              "max",              HTH_ARGUMENT_ANY)                                      \
    X(MEAN,             "mean",             HTH_ARGUMENT_ANY)                                      \
    X(METADATA,         "metadata",         HTH_ARGUMENT_SWITCH)                                   \
    X(MINE,             "mine",             HTH_ARGUMENT_SWITCH)                                   \
    X(MODEL,            "model",            HTH_ARGUMENT_TEXT)                                     \
    X(MOMENTUM,         "momentum",         HTH_ARGUMENT_ANY)                                      \
    X(NAME,             "name",             HTH_ARGUMENT_TEXT)                                     \
    X(NESTEROV,         "nesterov",         HTH_ARGUMENT_SWITCH)                                   \
    X(NORMALIZE,        "normalize",        HTH_ARGUMENT_ANY)                                      \
    X(NO_SHUFFLE,       "no-shuffle",       HTH_ARGUMENT_SWITCH)                                   \
    X(NO_WAIT,          "no-wait",          HTH_ARGUMENT_SWITCH)                                   \
    X(ON,               "on",               HTH_ARGUMENT_TEXT)                                     \
    X(OPTIMIZER,        "optimizer",        HTH_ARGUMENT_TEXT)                                     \
    X(OUT,              "out",              HTH_ARGUMENT_ANY)                                      \
    X(PAIRS,            "pairs",            HTH_ARGUMENT_SWITCH)                                   \
    X(PATIENCE,         "patience",         HTH_ARGUMENT_ANY)                                      \
    X(PIN,              "pin",              HTH_ARGUMENT_SWITCH)                                   \
    X(PLAN_MS,          "plan-ms",          HTH_ARGUMENT_NUMBER)                                   \
    X(POINTS,           "points",           HTH_ARGUMENT_NUMBER)                                   \
    X(POLICY,           "policy",           HTH_ARGUMENT_TEXT)                                     \
    X(POS_WEIGHT,       "pos-weight",       HTH_ARGUMENT_ANY)                                      \
    X(PRECISION,        "precision",        HTH_ARGUMENT_TEXT)                                     \
    X(PREFERRED,        "preferred",        HTH_ARGUMENT_ANY)                                      \
    X(PRIORITY,         "priority",         HTH_ARGUMENT_ANY)                                      \
    X(PROBLEM,          "problem",          HTH_ARGUMENT_ANY)                                      \
    X(PROFILE,          "profile",          HTH_ARGUMENT_ANY)                                      \
    X(QUEUE,            "queue",            HTH_ARGUMENT_ANY)                                      \
    X(QUOTA,            "quota",            HTH_ARGUMENT_TEXT)                                     \
    X(READ,             "read",             HTH_ARGUMENT_SWITCH)                                   \
    X(REDUCE,           "reduce",           HTH_ARGUMENT_TEXT)                                     \
    X(REMOVE,           "remove",           HTH_ARGUMENT_SWITCH)                                   \
    X(REPLAN,           "replan",           HTH_ARGUMENT_TEXT)                                     \
    X(RESUME,           "resume",           HTH_ARGUMENT_SWITCH)                                   \
    X(RETRIES,          "retries",          HTH_ARGUMENT_ANY)                                      \
    X(SAVE_AS,          "save-as",          HTH_ARGUMENT_TEXT)                                     \
    X(SCALE,            "scale",            HTH_ARGUMENT_TEXT | HTH_ARGUMENT_NUMBER)               \
    X(SCHEDULE,         "schedule",         HTH_ARGUMENT_TEXT)                                     \
    X(SECONDS,          "seconds",          HTH_ARGUMENT_NUMBER)                                   \
    X(SEED,             "seed",             HTH_ARGUMENT_NUMBER)                                   \
    X(SHARDS,           "shards",           HTH_ARGUMENT_ANY)                                      \
    X(SPILL,            "spill",            HTH_ARGUMENT_TEXT)                                     \
    X(START,            "start",            HTH_ARGUMENT_ANY)                                      \
    X(STD,              "std",              HTH_ARGUMENT_ANY)                                      \
    X(STEPS,            "steps",            HTH_ARGUMENT_NUMBER)                                   \
    X(SYNC_BN,          "sync-bn",          HTH_ARGUMENT_SWITCH)                                   \
    X(TIME_LIMIT,       "time-limit",       HTH_ARGUMENT_ANY)                                      \
    X(TIMEOUT_US,       "timeout_us",       HTH_ARGUMENT_ANY)                                      \
    X(TOLERANCE,        "tolerance",        HTH_ARGUMENT_ANY)                                      \
    X(TRACE,            "trace",            HTH_ARGUMENT_ANY)                                      \
    X(TRAIN,            "train",            HTH_ARGUMENT_SWITCH)                                   \
    X(UNPIN,            "unpin",            HTH_ARGUMENT_SWITCH)                                   \
    X(WAIT,             "wait",             HTH_ARGUMENT_SWITCH)                                   \
    X(WAIT_MS,          "wait_ms",          HTH_ARGUMENT_NUMBER)                                   \
    X(WARMUP,           "warmup",           HTH_ARGUMENT_ANY)                                      \
    X(WEIGHT_DECAY,     "weight-decay",     HTH_ARGUMENT_ANY)                                      \
    X(WRITE_PROFILE,    "write-profile",    HTH_ARGUMENT_ANY)
// clang-format on

typedef enum hth_argument {
#define HTH_ARGUMENT_ID(ID, name, types) HTH_ARGUMENT_##ID,
    HTH_ARGUMENT_TABLE(HTH_ARGUMENT_ID)
#undef HTH_ARGUMENT_ID
        HTH_ARGUMENTS
} hth_argument;

// A set of arguments: its bits are HTH_TAKES.
typedef unsigned __int128 hth_argument_set;
_Static_assert(HTH_ARGUMENTS <= 128, "a row's arguments are the bits of a hth_argument_set");

#define HTH_TAKES(ID)   ((hth_argument_set)1 << HTH_ARGUMENT_##ID)
#define HTH_TAKES_MODEL (HTH_TAKES(MODEL) | HTH_TAKES(ON))
#define HTH_TAKES_JOB   (HTH_TAKES(JOB) | HTH_TAKES(ID) | HTH_TAKES(ON))
#define HTH_TAKES_LOAD                                                                             \
    (HTH_TAKES_MODEL | HTH_TAKES(PIN) | HTH_TAKES(UNPIN) | HTH_TAKES(WAIT) | HTH_TAKES(NO_WAIT))
#define HTH_TAKES_BATCHING                                                                         \
    (HTH_TAKES_MODEL | HTH_TAKES(MAX) | HTH_TAKES(DELAY_US) | HTH_TAKES(TIMEOUT_US) |              \
     HTH_TAKES(QUEUE) | HTH_TAKES(PRIORITY) | HTH_TAKES(PREFERRED))
// Of a model's program that is made for the command.
#define HTH_TAKES_PROGRAM                                                                          \
    (HTH_TAKES_MODEL | HTH_TAKES(BATCH) | HTH_TAKES(BUDGET) | HTH_TAKES(PRECISION))
// Of a training step.
#define HTH_TAKES_STEP                                                                             \
    (HTH_TAKES_PROGRAM | HTH_TAKES(ACCUMULATE) | HTH_TAKES(BETA1) | HTH_TAKES(BETA2) |             \
     HTH_TAKES(CHECKPOINT_EVERY) | HTH_TAKES(CLASS_AXIS) | HTH_TAKES(CLASS_WEIGHTS) |              \
     HTH_TAKES(CLIP) | HTH_TAKES(CROP) | HTH_TAKES(DATA) | HTH_TAKES(EPOCHS) | HTH_TAKES(EPS) |    \
     HTH_TAKES(EVAL) | HTH_TAKES(FLIP) | HTH_TAKES(FREEZE) | HTH_TAKES(HOLD_OUT) |                 \
     HTH_TAKES(KEEP) | HTH_TAKES(LABEL_SMOOTHING) | HTH_TAKES(LOSS) | HTH_TAKES(LR) |              \
     HTH_TAKES(MEAN) | HTH_TAKES(MOMENTUM) | HTH_TAKES(NESTEROV) | HTH_TAKES(NORMALIZE) |          \
     HTH_TAKES(NO_SHUFFLE) | HTH_TAKES(OPTIMIZER) | HTH_TAKES(PATIENCE) | HTH_TAKES(PLAN_MS) |     \
     HTH_TAKES(POLICY) | HTH_TAKES(POS_WEIGHT) | HTH_TAKES(PROFILE) | HTH_TAKES(REPLAN) |          \
     HTH_TAKES(RESUME) | HTH_TAKES(SAVE_AS) | HTH_TAKES(SCALE) | HTH_TAKES(SCHEDULE) |             \
     HTH_TAKES(SEED) | HTH_TAKES(SPILL) | HTH_TAKES(STD) | HTH_TAKES(TRACE) | HTH_TAKES(TRAIN) |   \
     HTH_TAKES(WARMUP) | HTH_TAKES(WEIGHT_DECAY) | HTH_TAKES(WRITE_PROFILE))
// Of K-means, in addition to those that every job has.
#define HTH_TAKES_KMEANS                                                                           \
    (HTH_TAKES(KIND) | HTH_TAKES(K) | HTH_TAKES(ITERATIONS) | HTH_TAKES(INIT) | HTH_TAKES(START) | \
     HTH_TAKES(TOLERANCE))

// ---- commands

enum {
    HTH_COMMAND_LONG = 0,      // it computes, loads or trains
    HTH_COMMAND_SHORT = 1,     // answered in a moment: counts among the short requests
    HTH_COMMAND_AT_ONCE = 2,   // changes, loads and computes nothing: answered between two kernels
    HTH_COMMAND_REDACTED = 4,  // its answer has paths and reasons, which peers elsewhere do not get
    HTH_COMMAND_OWN_JOBS = 8,  // what it answers depends on whose jobs the caller may see
    HTH_COMMAND_INTERNAL = 16, // the server's own: no name on the wire means it
};

// clang-format off
// Answered by the front end, most of them from the store; no engine sees them.
#define HTH_COMMANDS_STORE(X)                                                                      \
    X(ALIAS, alias, HTH_NEED_MODEL, HTH_COMMAND_LONG, none, first,                                 \
      HTH_TAKES(ALIAS) | HTH_TAKES(MODEL) | HTH_TAKES(REMOVE) | HTH_TAKES(NO_WAIT),                \
      HTH_TAKES(ALIAS))                                                                            \
    X(DATASET_PUT, dataset_put, HTH_NEED_JOB, HTH_COMMAND_LONG, none, first,                       \
      HTH_TAKES(NAME) | HTH_TAKES(DATA), HTH_TAKES(NAME))                                          \
    X(DATASET_RM, dataset_rm, HTH_NEED_JOB, HTH_COMMAND_SHORT, none, first,                        \
      HTH_TAKES(NAME), HTH_TAKES(NAME))                                        \
    X(DATASETS, datasets, HTH_NEED_ANY, HTH_COMMAND_SHORT, none, first, 0, 0)                      \
    X(MODELS, models, HTH_NEED_ANY, HTH_COMMAND_SHORT, none, first, 0, 0)                          \
    X(VERIFY, verify, HTH_NEED_MODEL, HTH_COMMAND_LONG, none, first, HTH_TAKES(MODEL), 0)          \
    X(WATCH, watch, HTH_NEED_ANY,                                                                  \
      HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED | HTH_COMMAND_OWN_JOBS, none, first,                \
      HTH_TAKES_JOB | HTH_TAKES(AFTER) | HTH_TAKES(WAIT_MS), HTH_TAKES(JOB))

// About models, devices and tenants: query_NAME in engine/query/.
#define HTH_COMMANDS_QUERY(X)                                                                      \
    X(BATCHING, batching, HTH_NEED_MODEL, HTH_COMMAND_SHORT, having, first,                        \
      HTH_TAKES_BATCHING, HTH_TAKES(MODEL))                                                        \
    X(BENCH, bench, HTH_NEED_JOB, HTH_COMMAND_LONG, one, first,                                    \
      HTH_TAKES_STEP | HTH_TAKES(SECONDS) | HTH_TAKES(STEPS), 0)                                   \
    X(CONVSEL, convsel, HTH_NEED_JOB, HTH_COMMAND_LONG, one, first,                                \
      HTH_TAKES_STEP | HTH_TAKES(AGAIN) | HTH_TAKES(PAIRS), 0)                                     \
    X(CURVE, curve, HTH_NEED_JOB, HTH_COMMAND_LONG, one, first,                                    \
      HTH_TAKES_STEP | HTH_TAKES(PROBLEM), 0)                                                      \
    X(DEVICE_QUOTA, device_quota, HTH_NEED_ADMIN, HTH_COMMAND_SHORT, one, first,                   \
      HTH_TAKES(ON) | HTH_TAKES(QUOTA), HTH_TAKES(ON) | HTH_TAKES(QUOTA))                          \
    X(DEVICES, devices, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE, all, devices,       \
      HTH_TAKES(ON), 0)                                                                            \
    X(LATENCY, latency, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE, all, latency,       \
      HTH_TAKES(ON), 0)                                                                            \
    X(MODEL, model, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE, one, first,             \
      HTH_TAKES_MODEL | HTH_TAKES(KEEP) | HTH_TAKES(METADATA), HTH_TAKES(MODEL))                   \
    X(PLAN, plan, HTH_NEED_JOB, HTH_COMMAND_LONG, one, first,                                      \
      HTH_TAKES_STEP | HTH_TAKES(OUT) | HTH_TAKES(PROBLEM), 0)                                     \
    X(PRECISION, precision, HTH_NEED_MODEL, HTH_COMMAND_SHORT, having, first,                      \
      HTH_TAKES_MODEL | HTH_TAKES(PRECISION), HTH_TAKES(MODEL))                                    \
    X(STATS, stats, HTH_NEED_ANY,                                                                  \
      HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE | HTH_COMMAND_OWN_JOBS, having, stats,               \
      HTH_TAKES_MODEL, 0)                                                                          \
    X(TENANTS, tenants, HTH_NEED_ADMIN, HTH_COMMAND_SHORT, all, tenants,                           \
      HTH_TAKES(READ) | HTH_TAKES(ON), 0)

// About models in memory: take_NAME in engine/serve/load.c. "serving" is asked after an import: it
// is answered when the newest version answers by the name, or may not.
#define HTH_COMMANDS_LOAD(X)                                                                       \
    X(LOAD, load, HTH_NEED_MODEL, HTH_COMMAND_LONG, load, first, HTH_TAKES_LOAD,                   \
      HTH_TAKES(MODEL))                                                                            \
    X(LOADED, loaded, HTH_NEED_ANY,                                                                \
      HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE | HTH_COMMAND_REDACTED, all, loaded,                 \
      HTH_TAKES(ON), 0)                                                                            \
    X(SERVING, serving, HTH_NEED_ADMIN, HTH_COMMAND_LONG, each, first, HTH_TAKES_LOAD,             \
      HTH_TAKES(MODEL))                                                                            \
    X(UNLOAD, unload, HTH_NEED_MODEL, HTH_COMMAND_LONG, all, unload, HTH_TAKES_LOAD,               \
      HTH_TAKES(MODEL))

// About training jobs: query_NAME in engine/train/queue/train_commands.c.
#define HTH_COMMANDS_JOBS(X)                                                                       \
    X(CANCEL, cancel, HTH_NEED_JOB, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED, job, first,          \
      HTH_TAKES_JOB, HTH_TAKES(JOB))                                                               \
    X(JOB, job, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED | HTH_COMMAND_OWN_JOBS,     \
      job, first, HTH_TAKES_JOB | HTH_TAKES(BUDGET) | HTH_TAKES(POINTS), HTH_TAKES(JOB))           \
    X(JOBS, jobs, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED | HTH_COMMAND_OWN_JOBS,   \
      all, jobs, HTH_TAKES(ON) | HTH_TAKES(MINE) | HTH_TAKES(ALL), 0)                              \
    X(LOGS, logs, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED | HTH_COMMAND_OWN_JOBS,   \
      job, first, HTH_TAKES_JOB | HTH_TAKES(AFTER) | HTH_TAKES(MAX), HTH_TAKES(JOB))               \
    X(PAUSE, pause, HTH_NEED_JOB, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED, job, first,            \
      HTH_TAKES_JOB, HTH_TAKES(JOB))                                                               \
    X(RESUME, resume, HTH_NEED_JOB, HTH_COMMAND_SHORT | HTH_COMMAND_REDACTED, job, first,          \
      HTH_TAKES_STEP | HTH_TAKES_JOB | HTH_TAKES(TIME_LIMIT) | HTH_TAKES(PRIORITY),                \
      HTH_TAKES(JOB))                      \
    X(SHARES, shares, HTH_NEED_ANY,                                                                \
      HTH_COMMAND_SHORT | HTH_COMMAND_AT_ONCE | HTH_COMMAND_REDACTED | HTH_COMMAND_OWN_JOBS,       \
      all, devices, HTH_TAKES(ON), 0)                                                              \
    X(TIMELINE, timeline, HTH_NEED_ANY, HTH_COMMAND_SHORT | HTH_COMMAND_OWN_JOBS, all, timeline,   \
      HTH_TAKES(ON), 0)

// Answered by the engine's thread itself: take_NAME in engine/local/local.c. "drain" is
// hth_engine_drain's.
#define HTH_COMMANDS_ENGINE(X)                                                                     \
    X(DRAIN, drain, HTH_NEED_ADMIN, HTH_COMMAND_SHORT | HTH_COMMAND_INTERNAL, none, first, 0, 0)   \
    X(TRAIN, train, HTH_NEED_JOB, HTH_COMMAND_LONG | HTH_COMMAND_REDACTED, train, first,           \
      HTH_TAKES_STEP | HTH_TAKES_KMEANS | HTH_TAKES(JOB) | HTH_TAKES(DETACH) | HTH_TAKES(AFTER) |  \
          HTH_TAKES(RETRIES) | HTH_TAKES(REDUCE) | HTH_TAKES(SHARDS) | HTH_TAKES(SYNC_BN) |        \
          HTH_TAKES(EXCHANGE) |                                                                    \
          HTH_TAKES(TIME_LIMIT) | HTH_TAKES(PRIORITY),                                             \
      0)
// clang-format on

#define HTH_COMMAND_TABLE(X)                                                                       \
    HTH_COMMANDS_STORE(X)                                                                          \
    HTH_COMMANDS_QUERY(X)                                                                          \
    HTH_COMMANDS_LOAD(X)                                                                           \
    HTH_COMMANDS_JOBS(X)                                                                           \
    HTH_COMMANDS_ENGINE(X)

typedef enum hth_command_id {
    HTH_COMMAND_NONE, // of a request: an inference; of a name: there is no such command
#define HTH_COMMAND_ID(ID, ...) HTH_COMMAND_##ID,
    HTH_COMMAND_TABLE(HTH_COMMAND_ID)
#undef HTH_COMMAND_ID
        HTH_COMMANDS
} hth_command_id;

typedef struct hth_command_row {
    const char *name;
    hth_need need;
    unsigned traits;
    hth_argument_set takes, required;
} hth_command_row;

// hth_command_find: HTH_COMMAND_NONE: no command has that name, or it is the server's own.
hth_command_id hth_command_find(const char *name);
// hth_command_named is the same for what a caller wrote: HTH_ENOENT with a sentence.
hth_err hth_command_named(const char *name, hth_command_id *out);
// hth_command_name is the name on the wire, NULL of HTH_COMMAND_NONE.
const char *hth_command_name(hth_command_id command);
// hth_command_get returns a command's row. HTH_COMMAND_NONE has one, too: nobody but an admin may
// ask for what is in no row; its name is NULL.
const hth_command_row *hth_command_get(hth_command_id command);
bool hth_command_is(hth_command_id command, unsigned trait);

// hth_argument_name is an argument's key; hth_argument_types a set of hth_argument_type.
const char *hth_argument_name(hth_argument argument);
unsigned hth_argument_types(hth_argument argument);

#endif
