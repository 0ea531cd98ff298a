// SPDX-License-Identifier: Apache-2.0
// engine/train/queue/train_entry_impl.h - the inside of the queue of training jobs: train_queue.c
// (who is at work, and how jobs end), train_submit.c and train_resume.c (how they come into the
// queue), train_entry.c (a job in it), train_wait.c (why they wait, and how long), train_quota.c
// (whether their results fit), train_gang.c (jobs on several
// devices), train_turn.c (whose step comes next), train_record.c (what is kept
// of them), train_row.c (what is told of them), train_commands.c (what is asked).
#ifndef HTH_ENGINE_TRAIN_QUEUE_TRAIN_ENTRY_IMPL_H
#define HTH_ENGINE_TRAIN_QUEUE_TRAIN_ENTRY_IMPL_H

#include "engine/train/checkpoint/checkpoint.h"
#include "engine/train/job.h"
#include "engine/train/queue/job_log.h"
#include "engine/train/queue/train_fair.h"
#include "engine/train/queue/train_queue.h"
#include "runtime/tenants/tenant.h"

#define HTH_TRAIN_AFTER  16          // jobs that one waits for, at most
#define HTH_TRAIN_PAUSED "paused"    // the note of a checkpoint whose job waits for `resume`
#define HTH_TRAIN_QUEUED "queued"    // a job that waits for memory
#define HTH_TRAIN_MEMBER " (member " // what follows the name of a job that is a group's member

// What keeps a job from beginning that its turn does not depend on.
typedef enum hth_train_gate {
    HTH_TRAIN_GATE_NONE,
    HTH_TRAIN_GATE_AFTER,  // a job that it is to follow
    HTH_TRAIN_GATE_TENANT, // as many of its tenant's jobs are at work as may be
    HTH_TRAIN_GATE_QUOTA,  // its tenant's jobs hold as much memory as may be
    HTH_TRAIN_GATE_RETRY,  // the time until it is tried again
    HTH_TRAIN_GATE_GROUP,  // an older group, or the end of its job's pause
} hth_train_gate;

// A job that gives memory to another makes no steps until a plan for less of it is found, or its
// state is written and it goes.
typedef enum hth_train_leaving {
    HTH_TRAIN_STAYS,
    HTH_TRAIN_SHRINKS,
    HTH_TRAIN_WRITES,
    HTH_TRAIN_WRITTEN
} hth_train_leaving;

// A member of a group, its lead too (train_gang.c).
typedef struct hth_train_gang {
    struct hth_group_watch *watch; // NULL: the job is on one device
    uint64_t bytes;                // of the device, as the queue knows
    bool gave;                     // its memory to an older group, which waits still
    uint64_t since_ns; // since when that and its own have waited, 0: they do not; and not before
    uint64_t again_ns; // .. then it is asked again to give it
} hth_train_gang;

struct hth_train_entry {
    hth_train_entry *next;
    hth_train_queue *queue; // NULL: it was never made ready
    hth_tenant *tenant;     // who submitted it; NULL: nobody with limits
    hth_request *r;
    char job[HTH_CHECKPOINT_JOB];
    json_int_t id; // 0: it has no number yet
    bool fresh;    // its number is of this request
    bool noted;    // its record has a state of this request
    bool leaves;   // its client goes as soon as it is told that the job is taken
    bool member; // of a group, and not its lead: nothing of it is stored, and only the lead is told
    bool taken;  // that was told: the job works, or waits for memory
    hth_job *work;                 // NULL: not at work
    hth_timeline *timeline;        // of its last measured step; NULL: never at work, or no memory
    uint64_t reported_ns;          // when its last event was
    bool paused;                   // not taken up until it is resumed; with work: it is stuck
    uint64_t tried;                // 1 + queue->freed when there was too little memory, 0: never
    char why[HTH_CHECKPOINT_NOTE]; // .. and how much too little
    hth_train_gate gate;
    uint64_t after[HTH_TRAIN_AFTER]; // jobs that it is to follow; they leave the list as they end
    int n_after;
    uint64_t looked_ns;     // when the store was asked about them
    int attempt, retries;   // the attempt at work, from 1; how many may follow the first one
    bool retried;           // it was not at work again since the last one failed
    uint64_t not_before_ns; // of the next attempt
    hth_job_log *log;       // NULL: it has no number, or no memory
    uint64_t logged_ns;     // when its last step was logged
    hth_train_gang gang;
    hth_turns_job turn;              // its steps among those of other jobs
    uint64_t began_ns, began_ran_ns; // when it began to work, and queue->ran_ns then
    // of what is shared (train_fair.h)
    hth_fair_job fair;
    hth_train_offer offer;
    int priority;       // what was asked for
    bool spills;        // what leaves the device goes to a file
    uint64_t since_ns;  // when it came into the queue
    uint64_t opened_ns; // what it took to be made ready
    hth_train_leaving leaving;
    uint64_t more_ns, less_ns; // not before then it is asked again to have more memory, or less
    char favoured[HTH_TENANT]; // for whom it was paused, until it goes on
    double link;               // of a step's time its copies take so much, as planned
    double left_s;          // what its steps will take, by those that it made before; NAN: unknown
    int64_t left_steps;     // of one that goes on; 0: all
    const char *given;      // the request's own arguments, which it gets back with its answer
    char *arguments;        // in place of the request's, from json_dumps
    char owner[HTH_TENANT]; // who submitted it, as its checkpoint says
    char of[HTH_TENANT];    // whose it is: who asked for it, last
    hth_request own;        // of one that nobody waits for
};

// hth_train_entry_waits tells that a job would begin if it could.
static inline bool hth_train_entry_waits(const hth_train_entry *entry)
{
    return entry->work == NULL && !entry->paused;
}

static inline bool hth_train_entry_works(const hth_train_queue *queue, const hth_train_entry *entry)
{
    return entry != NULL && entry->work != NULL;
}

// hth_train_queue_find returns the first job of that name, NULL: it neither works nor waits.
hth_train_entry *hth_train_queue_find(const hth_train_queue *queue, const char *job);
// hth_train_queue_end answers the request with the result that hth_fail has set, and removes it.
// word: the job's state from now on; NULL: as before.
void hth_train_queue_end(hth_train_queue *queue, hth_train_entry *entry, hth_err err,
                         const char *word);
// hth_train_queue_event tells who listens that a job's state is another one.
void hth_train_queue_event(const hth_train_queue *queue, const char *job, const char *word);
// hth_train_queue_append puts an entry with a request in the queue.
void hth_train_queue_append(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_queue_failed decides what is left of a job that ends with the error that hth_fail has
// set, and returns its state from now on.
const char *hth_train_queue_failed(hth_train_queue *queue, hth_train_entry *entry, hth_err err);
// hth_train_queue_ahead returns the job that may begin next, NULL: none waits, or none may.
hth_train_entry *hth_train_queue_ahead(const hth_train_queue *queue);

// train_resume.c
// hth_train_queue_own adds a job that the server itself goes on with, from its checkpoint and in
// the name of who submitted it. requested: somebody has asked for it, so it counts for the limit;
// `given` changes its arguments.
hth_err hth_train_queue_own(hth_train_queue *queue, const char *job, json_t *given, bool requested);
// hth_train_entry_resume has a job that is in the queue go on from its checkpoint like this.
hth_err hth_train_entry_resume(hth_train_queue *queue, hth_train_entry *entry, json_t *given);

// train_entry.c
// hth_train_entry_read reads of a job's arguments what the queue needs to know.
void hth_train_entry_read(hth_train_entry *entry, const json_t *args);
// hth_train_entry_keep makes `args` the arguments of the job's request. HTH_ENOMEM.
hth_err hth_train_entry_keep(hth_train_entry *entry, const json_t *args);
// hth_train_entry_take tells who leaves its job here that it is taken: from now on it is in the
// store, and its end is known from its record. On error it is not taken.
hth_err hth_train_entry_take(hth_train_queue *queue, hth_train_entry *entry, const char *word);
static inline bool hth_train_entry_own(const hth_train_entry *entry)
{
    return entry->r->own; // no client waits for it: the server itself does
}
// hth_train_entry_stored reads the meta of the entry's checkpoint. HTH_ENOENT: there is none, or it
// is that of an older job of its name.
hth_err hth_train_entry_stored(const hth_train_queue *queue, const hth_train_entry *entry,
                               json_t **doc);
bool hth_train_entry_kept(const hth_train_queue *queue, const hth_train_entry *entry); // it has one
// hth_train_entry_set changes an argument of its request; `value` is freed.
hth_err hth_train_entry_set(hth_train_entry *entry, const char *key, json_t *value);
// hth_train_entry_release gives the request its own arguments back, before it is answered.
void hth_train_entry_release(hth_train_entry *entry);
// hth_train_entry_adopt has the server itself wait for a job, by its arguments and owner.
void hth_train_entry_adopt(hth_train_entry *entry);
void hth_train_entry_free(hth_train_entry *entry); // it is in no queue

// train_quota.c
// hth_train_quota refuses with HTH_EDENIED, and the numbers, a job with these arguments whose
// result would not fit in what `owner` ("": nobody) may have of the store.
hth_err hth_train_quota(const hth_train_queue *queue, const char *job, const char *owner,
                        const json_t *args);

// train_wait.c
// hth_train_wait_read reads which jobs the arguments name as "after": numbers and names become the
// list of numbers that the job keeps. `request`: who asks. HTH_ENOENT, HTH_EINVAL.
hth_err hth_train_wait_read(const hth_train_queue *queue, const hth_request *request, json_t *args);
// hth_train_wait_look finds out what an entry waits for (entry->gate). HTH_ECANCELED: a job that it
// was to follow has not finished, and never will.
hth_err hth_train_wait_look(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_wait_again has a job that failed tried again later, if that may be of use.
bool hth_train_wait_again(hth_train_queue *queue, hth_train_entry *entry, hth_err err);
// hth_train_wait_why says why a job waits, in one sentence, and for about how many seconds; NAN:
// that is not known.
double hth_train_wait_why(const hth_train_queue *queue, const hth_train_entry *entry,
                          char why[HTH_CHECKPOINT_NOTE]);

// train_record.c
// hth_train_entry_number gives a job a number that has none, and opens its log. The calling
// thread's error detail stays.
void hth_train_entry_number(const hth_train_queue *queue, hth_train_entry *entry);
// hth_train_entry_state notes in a job's record and its log that it is in another state. why: may
// be NULL.
void hth_train_entry_state(const hth_train_queue *queue, hth_train_entry *entry, const char *word,
                           const char *why);
// hth_train_entry_log adds a line to its log, which its next state writes to the store.
void hth_train_entry_log(hth_train_entry *entry, const char *level, const char *text);
// hth_train_entry_step logs a step, now and then.
void hth_train_entry_step(hth_train_entry *entry, const char *event, uint64_t done, uint64_t total);

// train_gang.c: jobs on several devices.
// hth_train_gang_open begins to look at the group of an entry's request, if it is of one.
hth_err hth_train_gang_open(hth_train_entry *entry);
void hth_train_gang_close(hth_train_entry *entry);
// hth_train_gang_pause: whether the job is paused or follows another one has changed. The group's
// members find out, if the entry is their lead.
void hth_train_gang_pause(hth_train_entry *entry);
// hth_train_gang_ran looks what a member holds after a slice: it plans for its lead's budget.
void hth_train_gang_ran(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_gang_over: its group has ended, and no attempt would be of use.
bool hth_train_gang_over(const hth_train_entry *entry);
// hth_train_gang_look has members give memory back, and ends those whose group is over.
void hth_train_gang_look(hth_train_queue *queue);
// hth_train_gang_gated tells whether the entry may not begin; hth_train_gang_why says why not.
bool hth_train_gang_gated(const hth_train_queue *queue, hth_train_entry *entry);
void hth_train_gang_why(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                        size_t cap);

// train_fair.c
// hth_train_fair_quota says whether the least that the job could have is within its tenant's limit
// of memory, with what its other jobs hold; hth_train_fair_capacity what jobs can have in all.
bool hth_train_fair_quota(const hth_train_queue *queue, const hth_train_entry *entry);
uint64_t hth_train_fair_capacity(const hth_site *site);

// train_reason.c
// hth_train_reason says in one sentence why a planned job waits, and returns for about how many
// seconds; NAN: that is not known.
double hth_train_reason(const hth_train_queue *queue, const hth_train_entry *entry, char *why,
                        size_t cap);
// hth_train_waits_word is what a job waits for, for counting: "turn" (those before it), "memory",
// "share" (it was paused for another tenant), "job" (that it is to follow), "tenant" (its limits),
// "retry" (until it is tried again).
const char *hth_train_waits_word(const hth_train_queue *queue, const hth_train_entry *entry);

// train_shares.c hth_train_shares answers "shares": {"devices": [{"device", "patience_seconds",
// "capacity", "free", "tenants": [{"tenant", "weight", "used", "share", "dominant",
// "dominant_share", "entitlement", "under", "run_ns", "jobs_running", "jobs_waiting", "running":
// [job], "waiting": [job]}]}]}, where a job is {"id", "job", "state", "priority", "memory_bytes",
// "why", "waits_for", "wait_seconds"}. Amounts are objects by resource: "threads", "host_memory"
// and "device_memory" in bytes, "device_time" and "link" in seconds per second; null: not known on
// this device.
hth_err hth_train_shares(const hth_train_queue *queue, const hth_request *request, json_t **out);

// train_turn.c
// hth_train_turn_next returns the job whose step comes next, NULL: none is at work.
hth_train_entry *hth_train_turn_next(hth_train_queue *queue);
// hth_train_turn_leave: the entry goes.
void hth_train_turn_leave(hth_train_queue *queue, hth_train_entry *entry);
// hth_train_turn_predict predicts when the jobs at work end, each with its turns; and
// hth_train_turn_left returns in how many seconds one of them ends, as was predicted last. NAN: not
// known.
void hth_train_turn_predict(const hth_train_queue *queue);
double hth_train_turn_left(const hth_train_queue *queue, const hth_train_entry *entry);
// hth_train_turn_ran charges a step of the job that took took_ns (hth_turns_ran).
void hth_train_turn_ran(hth_train_queue *queue, hth_train_entry *entry, uint64_t took_ns);

// train_row.c
// hth_train_row_mine tells whether a job of that tenant's is one that `request` may be told about,
// and may change.
bool hth_train_row_mine(const hth_request *request, const char *tenant);
// hth_train_row_word is the state of a job in the queue.
const char *hth_train_row_word(const hth_train_entry *entry);
// hth_train_row_get describes the job of that name: at work, waiting, in the store only, or ended;
// with `history` its losses. *out is the caller's. HTH_ENOENT; HTH_EDENIED: another tenant's.
hth_err hth_train_row_get(hth_train_queue *queue, const hth_request *request, const char *job,
                          bool history, json_t **out);
// hth_train_queue_may: HTH_EDENIED, the job (in the queue, or its checkpoint) is another tenant's
// than who asks; HTH_ENOENT: there is none of that name.
hth_err hth_train_queue_may(const hth_train_queue *queue, const char *job,
                            const hth_request *request);
// hth_train_queue_record keeps the record of a job that ends now, while its last state is there.
void hth_train_queue_record(hth_train_queue *queue, const char *job, const char *word,
                            const char *why);
// hth_train_queue_replaced keeps the record of a job by its checkpoint `doc`, which goes.
void hth_train_queue_replaced(const hth_train_queue *queue, const char *job, const json_t *doc,
                              const char *why);

#endif
