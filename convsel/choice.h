// SPDX-License-Identifier: Apache-2.0
// convsel/choice.h - one alternative of one node: what the planner chooses from. Pure data.
#ifndef HTH_CONVSEL_CHOICE_H
#define HTH_CONVSEL_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct hth_choice {
    char name[48]; // the library's name of the implementation ("jit_wino:avx512_core"), unique in
                   // its list
    uint64_t workspace_bytes; // exact
    uint64_t resident_bytes;  // of constant inputs, in the forms that it wants them in
    double time_us;           // median of >= 5 runs; < 0: not measured
    double error; // largest |difference| from the reference / largest |output|; < 0: not measured
    double rms;   // the same of the root of the mean square
    int split;    // chunks along the batch, 1: whole
    bool accumulates; // chunks add to their output
    bool deterministic;
    bool front;     // on the Pareto front of time against workspace
    bool disturbed; // others had the processors while it was timed, as far as could be seen
} hth_choice;

#endif
