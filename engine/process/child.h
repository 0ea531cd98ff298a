// SPDX-License-Identifier: Apache-2.0
// engine/process/child.h - the engine's process: a program that hearthd starts of itself.
#ifndef HTH_ENGINE_PROCESS_CHILD_H
#define HTH_ENGINE_PROCESS_CHILD_H

#include <stdbool.h>

// The only argument of the engine's process.
#define HTH_CHILD_FLAG "--engine-process"

typedef struct hth_child_config {
    void (*settings_changed)(void); // they have been set anew; NULL: nobody asks
    // the parent is gone: is to end the process at once; any thread
    void (*orphaned)(void);
} hth_child_config;

// hth_child_requested tells whether the program was started to be the engine's process.
bool hth_child_requested(int argc, char **argv);
// hth_child_run is that process, to be called before there is any other thread. It returns the exit
// status, when hearthd has stopped it.
int hth_child_run(const hth_child_config *config);

#endif
