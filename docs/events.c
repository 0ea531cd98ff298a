// SPDX-License-Identifier: Apache-2.0
// Inferences in an event loop, libevent's: nobody waits, and all callbacks are on its thread.
// usage: events STORE-DIRECTORY digits.onnx
// cc events.c -lhearth -levent_core
#include <hearth.h>
#include <event2/event.h>
#include <stdio.h>

static int left = 10;

static void answered(void *ctx, hearth_status status, hearth_tensor *outputs, int n_outputs)
{
    if (status == HEARTH_OK) {
        printf("%g\n", ((const float *)outputs[0].data)[0]);
    } else {
        fprintf(stderr, "events: %s\n", hearth_error());
    }
    hearth_tensors_free(outputs, n_outputs);
    if (--left == 0) {
        event_base_loopbreak(ctx);
    }
}

static void readable(evutil_socket_t fd, short what, void *h)
{
    hearth_event_run(h);
}

int main(int argc, char **argv)
{
    static float image[64]; // lasts until the last answer
    hearth_options options = {.store = argc > 2 ? argv[1] : NULL};
    hearth_tensor x = {.dtype = HEARTH_F32,
                       .rank = 4,
                       .shape = {1, 1, 8, 8},
                       .data = image,
                       .bytes = sizeof image};
    struct event_base *loop = event_base_new();
    hearth *h;
    if (hearth_open("inproc://", &options, &h) != HEARTH_OK ||
        hearth_import(h, "digits", argv[2], -1, NULL, NULL, NULL) != HEARTH_OK) {
        fprintf(stderr, "events: %s\n", hearth_error());
        return 1;
    }
    struct event *e = event_new(loop, hearth_event_fd(h), EV_READ | EV_PERSIST, readable, h);
    event_add(e, NULL);
    for (int i = 0; i < left; i++) {
        if (hearth_submit(h, "digits", &x, 1, NULL, answered, loop, NULL) != HEARTH_OK) {
            fprintf(stderr, "events: %s\n", hearth_error());
            return 1;
        }
    }
    event_base_dispatch(loop);
    event_free(e);
    event_base_free(loop);
    hearth_close(h);
    return 0;
}
