// SPDX-License-Identifier: Apache-2.0
// A run on a device that captures work (device.h) is issued plainly once, which loads and sets up
// whatever its kernels do at first; when it comes again with every address as it was, it is issued
// once more to be captured, and from then on one launch is the whole run: kernels and copies of all
// lanes, tied by the same events.
//
// Invariant: what is launched was captured with the addresses that are bound now and with the far
// places that hold now. Binding anew ends its validity, and the next capture waits for twice as
// many repetitions as the last one, up to a bound: a run whose memory moves all the time is issued
// plainly. Inputs and outputs of requests are copied to and from the arena around a run, so they
// change nothing here.
//
// What cannot be captured, such as a copy from memory that is not pinned, has the run issued
// plainly for good; that is logged once.
#include "memmgr/run_impl.h"

#include "base/alloc.h"
#include "base/log.h"

#include <stdio.h>

#define CAPTURE_LATEST 64u // repetitions that are waited for at most

bool run_capture_possible(const hth_run *run)
{
    return !run->inline_compute && hth_device_captures(run->spec.device);
}

// The order's events: all lanes begin after `fork`, and the compute lane ends after every `join`.
static hth_err capture_prepare(hth_run *run)
{
    run_capture *c = &run->capture;
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (run->stream[l] != NULL && c->edge[l] == NULL) {
            HTH_TRY(hth_event_open(run->spec.device, &c->edge[l]));
        }
    }
    c->far = c->far != NULL ? c->far : hth_calloc((size_t)run->n_steps + 1, sizeof *c->far);
    return c->far != NULL ? HTH_OK : hth_no_memory("capturing a plan");
}

static hth_err capture_issue(hth_run *run)
{
    run_capture *c = &run->capture;
    hth_stream *origin = run->stream[HTH_LANE_COMPUTE];
    HTH_TRY(hth_stream_record(origin, c->edge[HTH_LANE_COMPUTE]));
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (l != HTH_LANE_COMPUTE && run->stream[l] != NULL) {
            HTH_TRY(hth_stream_wait(run->stream[l], c->edge[HTH_LANE_COMPUTE]));
        }
    }
    HTH_TRY(run_issue_all(run, 0));
    for (int l = 0; l < HTH_N_LANES; l++) {
        if (l != HTH_LANE_COMPUTE && run->stream[l] != NULL) {
            HTH_TRY(hth_stream_record(run->stream[l], c->edge[l]));
            HTH_TRY(hth_stream_wait(origin, c->edge[l]));
        }
    }
    return HTH_OK;
}

static hth_err capture_record(hth_run *run)
{
    run_capture *c = &run->capture;
    hth_stream *origin = run->stream[HTH_LANE_COMPUTE];
    HTH_TRY(capture_prepare(run));
    for (int i = 0; i < run->n_steps; i++) {
        c->far[i] = run->steps[i].far != NULL ? run->steps[i].far->memory : NULL;
    }
    HTH_TRY(hth_capture_begin(origin));
    hth_err err = capture_issue(run);
    if (err != HTH_OK) {
        char detail[512];
        snprintf(detail, sizeof detail, "%s", hth_err_detail());
        (void)hth_capture_end(origin, NULL);
        return hth_fail(err, "%s", detail);
    }
    return hth_capture_end(origin, &c->captured);
}

static bool capture_far_moved(const hth_run *run)
{
    for (int i = 0; run->capture.valid && i < run->n_steps; i++) {
        if (run->steps[i].far != NULL && run->steps[i].far->memory != run->capture.far[i]) {
            return true;
        }
    }
    return false;
}

void run_capture_moved(hth_run *run)
{
    run->capture.valid = false;
    run->capture.repeats = 0;
}

// Given up: for good, unless it was memory that lacked.
static void capture_give_up(hth_run *run, hth_err err)
{
    run_capture *c = &run->capture;
    c->off = err != HTH_ENOMEM && err != HTH_ENODEVMEM;
    run_capture_moved(run);
    hth_log(INFO, MEMMGR, "no-capture", "reason=\"%s\"", hth_err_detail());
}

bool run_capture_execute(hth_run *run, hth_err *err)
{
    run_capture *c = &run->capture;
    if (capture_far_moved(run)) {
        run_capture_moved(run);
    }
    if (c->off || (!c->valid && c->repeats++ < c->after)) {
        return false;
    }
    if (!c->valid) {
        *err = capture_record(run);
        c->valid = *err == HTH_OK;
        c->after = c->valid && c->after < CAPTURE_LATEST ? 2 * c->after : c->after;
    }
    if (c->valid) {
        *err = run_canceled(run) ? hth_fail(HTH_ECANCELED, "canceled")
                                 : hth_capture_launch(c->captured, run->stream[HTH_LANE_COMPUTE]);
        c->launches += *err == HTH_OK;
    }
    if (*err == HTH_OK || *err == HTH_ECANCELED || *err == HTH_EDEVLOST) {
        *err = run_drain(run, *err);
        return true;
    }
    capture_give_up(run, *err);
    return false;
}

uint64_t hth_run_replays(const hth_run *run)
{
    return run->capture.launches;
}

void run_capture_close(hth_run *run)
{
    hth_capture_close(run->capture.captured);
    for (int l = 0; l < HTH_N_LANES; l++) {
        hth_event_close(run->capture.edge[l]);
    }
    hth_free(run->capture.far);
}
