// SPDX-License-Identifier: Apache-2.0
// One lock guards the whole state; it is held for moments, never while anything is read or sent.
#include "client/content/send_impl.h"

#include "base/alloc.h"
#include "base/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>
#include <time.h>

#define SEND_AHEAD   ((uint64_t)2 << 20) // HTH_UPLOAD_AHEAD of the store's
#define SEND_TRIES   10
#define SEND_WAIT_MS 100 // before the first new attempt; each other one takes twice as long
#define SEND_WAIT_UP 5   // .. up to so many

typedef struct send_piece {
    hth_send_object *o;
    uint64_t at;
    size_t n;
} send_piece;

bool hth_content_lost(hth_err err)
{
    return err == HTH_EIO || err == HTH_EBUSY || err == HTH_ECANCELED;
}

// ---- asking

hth_err hth_content_list(const hth_content_object *objects, int n, size_t more,
                         hearth_tensor *section, uint64_t *list_bytes)
{
    HTH_TRY(hth_content_list_bytes(objects, n, list_bytes));
    *section = (hearth_tensor){.bytes = (size_t)*list_bytes + more};
    section->data = hth_alloc(section->bytes + 1);
    if (section->data == NULL) {
        return hth_no_memory("sending content");
    }
    hth_content_list_write(objects, n, section->data);
    return HTH_OK;
}

hth_err hth_send_have(hearth *handle, const hth_content_object *objects, int n, uint64_t *there)
{
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Have body = HEARTH__HAVE__INIT;
    hearth_tensor section;
    uint64_t bytes;
    hth_reply r;
    body.objects = (uint32_t)n;
    q.body_case = HEARTH__REQUEST__BODY_HAVE;
    q.have = &body;
    HTH_TRY(hth_content_list(objects, n, 0, &section, &bytes));
    hth_err err = hth_exchange(handle, &q, &section, NULL, &r);
    hth_free(section.data);
    HTH_TRY(err);
    if (r.head->body_case != HEARTH__REPLY__BODY_HELD || r.data_bytes != (uint64_t)n * 8) {
        err = hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", handle->url);
    } else if (n > 0) {
        memcpy(there, r.data, (size_t)n * 8);
    }
    hth_reply_fini(&r);
    return err;
}

void hth_send_fail(hth_send_job *job, hth_err err) // under the lock
{
    if (job->err == HTH_OK) {
        job->err = err;
        strncpy(job->detail, hth_err_detail(), sizeof job->detail - 1);
    }
    job->stop = true;
    pthread_cond_broadcast(&job->changed);
}

void hth_send_wait(hth_send_job *job, uint64_t ms)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + ms * 1000000u;
    t.tv_sec += (time_t)(ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    (void)pthread_cond_timedwait(&job->changed, &job->lock, &t);
}

// send_pause waits before another attempt, under the lock.
static void send_pause(hth_send_job *job)
{
    int up = job->tries < SEND_WAIT_UP ? job->tries : SEND_WAIT_UP;
    uint64_t until = hth_now_ns() + ((uint64_t)SEND_WAIT_MS << up) * 1000000u;
    for (uint64_t now = hth_now_ns(); !job->stop && now < until; now = hth_now_ns()) {
        hth_send_wait(job, (until - now) / 1000000u + 1);
    }
}

void hth_send_found(hth_send_object *object, uint64_t bytes, uint64_t there)
{
    object->whole = there == HTH_CONTENT_WHOLE;
    if (there >= bytes) { // all, and not whole: it is sent again, and the server judges it
        there = object->whole ? bytes : 0;
    }
    object->there = object->next = there;
    object->lost = object->asking = false;
}

// send_ask has an object's state asked for anew, when none of its pieces is under way. Under the
// lock, which it gives up meanwhile.
static void send_ask(hth_send_job *job, hth_send_object *o)
{
    const hth_content_object *object = &job->source->objects[o->i];
    o->asking = true;
    while (!job->stop && o->lost) {
        uint64_t there = 0;
        send_pause(job);
        pthread_mutex_unlock(&job->lock);
        hth_err err = hth_send_have(job->h, object, 1, &there);
        pthread_mutex_lock(&job->lock);
        if (err == HTH_OK) {
            hth_send_found(o, object->bytes, there);
        } else if (!hth_content_lost(err) || ++job->tries > SEND_TRIES) {
            hth_send_fail(job, err);
        }
    }
    pthread_cond_broadcast(&job->changed);
}

// ---- pieces

// send_next finds a piece that may go now. One object is sent after the other, the next one's
// pieces with the last one's: what is begun of many would be sent again of many. Under the lock.
static bool send_next(hth_send_job *job, send_piece *piece)
{
    while (job->first < job->n && job->objects[job->first].whole) {
        job->first++;
    }
    for (int k = job->first; k < job->n; k++) {
        hth_send_object *o = &job->objects[k];
        uint64_t left = job->source->objects[o->i].bytes - o->next;
        size_t n = left < HTH_SEND_PIECE ? (size_t)left : HTH_SEND_PIECE;
        if (!o->whole && (o->lost || left > 0)) {
            *piece = (send_piece){o, o->next, n};
            return !o->lost && (o->next == o->there || o->next + n <= o->there + SEND_AHEAD);
        }
    }
    return false;
}

// send_put sends a piece. *verdict: the server has judged it, and not the connection.
static hth_err send_put(hth_send_job *job, const send_piece *piece, void *chunk, uint64_t *there,
                        bool *verdict)
{
    const hth_content_object *o = &job->source->objects[piece->o->i];
    Hearth__Request q = HEARTH__REQUEST__INIT;
    Hearth__Put body = HEARTH__PUT__INIT;
    hearth_tensor section = {.data = chunk, .bytes = piece->n};
    hth_reply r;
    *verdict = false;
    body.id = (ProtobufCBinaryData){sizeof o->id, (uint8_t *)o->id.byte};
    body.dtype = (uint32_t)o->dtype;
    body.n_shape = (size_t)o->shape.rank;
    body.shape = (int64_t *)o->shape.dim;
    body.bytes = o->bytes;
    body.offset = piece->at;
    body.piece = piece->n;
    q.body_case = HEARTH__REQUEST__BODY_PUT;
    q.put = &body;
    HTH_TRY(hth_exchange(job->h, &q, &section, NULL, &r));
    const Hearth__Stored *s = r.head->stored;
    hth_err err = HTH_OK;
    if (r.head->body_case != HEARTH__REPLY__BODY_STORED) {
        err = hth_fail(HTH_ECORRUPT, "%s sent an unexpected kind of reply", job->h->url);
    } else if (s->failed != NULL) {
        uint32_t code = s->failed->code;
        *verdict = true;
        err = hth_fail(code > HTH_OK && code < HTH_N_ERR ? (hth_err)code : HTH_EIO, "%s",
                       s->failed->sentence);
    } else {
        *there = s->whole ? HTH_CONTENT_WHOLE : s->there;
    }
    hth_reply_fini(&r);
    return err;
}

// send_again tells whether a piece that failed is worth another attempt. Under the lock. What the
// server has as a whole, and is wrong, may have been damaged there: it is sent once more.
static bool send_again(hth_send_job *job, hth_send_object *object, hth_err err, bool verdict)
{
    if (verdict && err == HTH_ECORRUPT && !object->failed) {
        object->failed = true;
        return true;
    }
    bool again = verdict ? err == HTH_EBUSY || err == HTH_EINVAL : hth_content_lost(err);
    job->tries += !object->lost; // pieces that are lost together count once
    return again && job->tries <= SEND_TRIES;
}

// send_lose has all objects asked for anew of which a part was sent: the connection, and perhaps
// the server, is another one now. Under the lock.
static void send_lose(hth_send_job *job)
{
    for (int k = job->first; k < job->n; k++) {
        hth_send_object *o = &job->objects[k];
        o->lost = o->lost || (!o->whole && o->next > 0);
    }
}

// send_stored takes how far the server is with an object, after one of its pieces. When all that
// were sent have their answers, their bytes are there, or the server says what cannot be. Under the
// lock.
static void send_stored(hth_send_job *job, hth_send_object *object, uint64_t there)
{
    const hth_content_object *o = &job->source->objects[object->i];
    object->whole = object->whole || there == HTH_CONTENT_WHOLE;
    there = there < o->bytes ? there : o->bytes;
    object->there = there > object->there ? there : object->there;
    bool open = object->under_way > 0 || object->whole || object->lost;
    if (!open && (object->there < object->next || object->next == o->bytes)) {
        hth_send_fail(job,
                      hth_fail(HTH_ECORRUPT,
                               "tensor '%s': %s took %llu bytes, and says that it has %llu "
                               "of %llu",
                               o->name, job->h->url, (unsigned long long)object->next,
                               (unsigned long long)object->there, (unsigned long long)o->bytes));
    }
}

// send_ended takes what became of a piece. Under the lock.
static void send_ended(hth_send_job *job, const send_piece *piece, hth_err err, bool verdict,
                       uint64_t there)
{
    hth_send_object *o = piece->o;
    assert(o->under_way > 0);
    o->under_way--;
    if (err == HTH_OK) {
        job->tries = 0;
        job->done += piece->n;
        send_stored(job, o, there);
    } else if (!o->whole && send_again(job, o, err, verdict)) {
        o->lost = true;
        if (!verdict) {
            send_lose(job);
        }
    } else if (!o->whole) {
        hth_err_prefix(err, "tensor '%s'", job->source->objects[o->i].name);
        job->source->refused = verdict;
        hth_send_fail(job, err);
    }
    pthread_cond_broadcast(&job->changed);
}

// send_asks finds the next object that a free worker must query. Under the lock.
static bool send_asks(hth_send_job *job, hth_send_object **out)
{
    for (int k = job->first; k < job->n; k++) {
        hth_send_object *o = &job->objects[k];
        if (o->lost && o->under_way == 0 && !o->asking) {
            *out = o;
            return true;
        }
    }
    return false;
}

static void send_one(hth_send_job *job, send_piece *piece, void *chunk)
{
    uint64_t there = 0;
    bool verdict = false;
    piece->o->next += piece->n;
    piece->o->under_way++;
    pthread_mutex_unlock(&job->lock);
    hth_err err = job->source->read(job->source->ctx, piece->o->i, piece->at, chunk, piece->n);
    bool read = err == HTH_OK;
    err = read ? send_put(job, piece, chunk, &there, &verdict) : err;
    pthread_mutex_lock(&job->lock);
    job->moved += read ? piece->n : 0;
    if (!read) {
        hth_send_fail(job, err);
    }
    send_ended(job, piece, err, verdict, there);
}

void hth_send_thread(void *arg)
{
    hth_send_job *j = arg;
    send_piece p;
    hth_send_object *o;
    void *chunk = hth_alloc(HTH_SEND_PIECE);
    pthread_mutex_lock(&j->lock);
    if (chunk == NULL) {
        hth_send_fail(j, hth_no_memory("sending content"));
    }
    while (!j->stop) {
        if (send_asks(j, &o)) {
            send_ask(j, o);
        } else if (send_next(j, &p)) {
            send_one(j, &p, chunk);
        } else if (j->first == j->n && !j->grows) {
            break;
        } else {
            hth_send_wait(j, HTH_SEND_LOOK_MS);
        }
    }
    assert(j->running > 0);
    j->running--;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
    hth_free(chunk);
}
