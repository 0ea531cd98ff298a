// SPDX-License-Identifier: Apache-2.0
// engine/router/place.h - which of a machine's devices gets a model, a request or a training job.
// Pure: a function of what is known of the devices, so that it is tested without any.
//
// Design notes
// Rules that a person can follow beat a cost model whose terms nobody measures. What is certain is
// used: bytes, counts, and how long requests took. Times decide only where a model has several
// copies, since only then each has been measured.
#ifndef HTH_ENGINE_ROUTER_PLACE_H
#define HTH_ENGINE_ROUTER_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#define HTH_PLACE_DEVICES 16

// One device, as seen by a model or a job.
typedef struct hth_place {
    bool up;               // it takes work now
    bool host;             // the machine's processors: slower than what is not
    bool refused;          // it cannot have this model: an operator, or too little memory
    bool has;              // this model is there
    bool coming;           // .. or on its way
    uint64_t budget_bytes; // what it may hold at most
    uint64_t room_bytes;   // of these nobody uses now
    uint64_t lacks_bytes;  // of the model: what would have to be moved there
    int requests;          // that it has not answered, of all models
    int mine;              // .. and of this one
    double service_ns;     // what a request for this model takes there; 0: not known
    int jobs;              // training jobs
} hth_place;

// hth_place_model chooses where a model goes that is nowhere: of the devices that are up and did
// not refuse it one with room before one without; then one that is no host; the fewest bytes to
// move; the most room; the first. -1: none can have it.
int hth_place_model(const hth_place *place, int count);
// hth_place_request chooses among the devices that are up and have the model the one where a
// request is answered soonest: (what is unanswered there + 1) times what one takes, where that is
// not known what the others take; the first of equals. -1: none.
int hth_place_request(const hth_place *place, int count);
// hth_place_another chooses a device for one more copy of a model: when each device that has it has
// at least `queue` of its requests unanswered, and there is one of the same kind as one of these
// (a host does not help out a GPU, or the other way round) with room for what it lacks and at most
// half as many requests as the least loaded of them. Then as hth_place_model. -1: no.
int hth_place_another(const hth_place *place, int count, int queue);
// hth_place_job chooses where a training job begins: of the devices that are up and did not refuse
// it one that is no host; the fewest jobs; the most room; the first. -1: none.
int hth_place_job(const hth_place *place, int count);

#endif
