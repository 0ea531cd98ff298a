// SPDX-License-Identifier: Apache-2.0
// client/cli/top/screen.h - a terminal that is rewritten as a whole, and a pause that keys and a
// new size end. Of the process there is one; its main thread.
#ifndef HTH_CLIENT_CLI_TOP_SCREEN_H
#define HTH_CLIENT_CLI_TOP_SCREEN_H

#include <stdbool.h>
#include <stdint.h>

typedef enum hth_screen_event {
    HTH_SCREEN_TIME,    // the pause is over
    HTH_SCREEN_RESIZED, // the terminal, or it was brought back: write it again
    HTH_SCREEN_KEY,     // was typed
    HTH_SCREEN_QUIT,    // a signal that ends the process, or the terminal is gone
} hth_screen_event;

// hth_screen_open has signals end a pause, and where stdin and stdout are a `terminal` takes it
// over: its alternate screen, no echo, no cursor. hth_screen_close gives it back as it was; signals
// that would end the process (SIGINT, SIGTERM, SIGHUP, ..) do so at once, whatever the process
// waits for, and a second one ends it; so does a crash.
void hth_screen_open(bool terminal); // false: it is left alone
void hth_screen_close(void);
bool hth_screen_is_terminal(void);
// hth_screen_size gives the lines and columns there are; 80 columns and all lines where there is no
// terminal.
void hth_screen_size(int *lines, int *columns);
// hth_screen_show writes a text that fits, which may have styles (page.h); nothing after a signal
// that ends the process.
void hth_screen_show(const char *text);
// hth_screen_pause waits for `ns` nanoseconds, or until something happens, *key being the key
// (keys.h) where one was typed. What was typed before comes first, however short the pause is.
hth_screen_event hth_screen_pause(uint64_t ns, int *key);

#endif
