// SPDX-License-Identifier: Apache-2.0
// Feeds arbitrary files to the readers of datasets. An input is a name, a zero byte and the file's
// bytes; what the name ends in chooses the reader where bytes do not, and "idx" and "images" make
// folders of it. Every byte that an accepted dataset claims to have is read.
#include "client/data/data.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FUZZ_READ ((uint64_t)16 << 20) // of one tensor: deflate makes much of little

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static volatile uint8_t fuzz_sink;
static char fuzz_dir[60]; // in memory, where there is a place

static void fuzz_end(void)
{
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", fuzz_dir);
    if (system(command) != 0) {
        abort();
    }
}

static void fuzz_put(const char *name, const void *data, size_t n)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) {
        abort();
    }
    close(fd);
}

static void fuzz_folder(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "%s/%s", fuzz_dir, name);
    if (mkdir(path, 0700) != 0) {
        abort();
    }
}

static void fuzz_begin(void)
{
    const char *in = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(fuzz_dir, sizeof fuzz_dir, "%s/hearth-dataset-fuzz-XXXXXX", in);
    if (mkdtemp(fuzz_dir) == NULL) {
        abort();
    }
    atexit(fuzz_end);
    fuzz_folder("idx");
    fuzz_folder("images");
    fuzz_folder("images/cat");
    fuzz_put("idx/labels-idx1", "\0\0\x08\x01\0\0\0\x02\1\2", 10);
}

static void fuzz_read(const char *name, const hth_data_options *options)
{
    static uint8_t piece[65536];
    char path[100];
    hth_data *d;
    snprintf(path, sizeof path, "%s/%s", fuzz_dir, name);
    if (hth_data_open(path, options, &d) != HTH_OK) {
        return;
    }
    for (int i = 0; i < d->n_tensors; i++) {
        uint64_t all = d->tensors[i].bytes < FUZZ_READ ? d->tensors[i].bytes : FUZZ_READ;
        for (uint64_t at = 0; at < all; at += sizeof piece) {
            size_t k = all - at < sizeof piece ? (size_t)(all - at) : sizeof piece;
            if (hth_data_read(d, i, at, piece, k) != HTH_OK) {
                break;
            }
            for (size_t b = 0; b < k; b++) {
                fuzz_sink ^= piece[b];
            }
        }
    }
    hth_data_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const hth_data_options size = {.height = 5, .width = 7}, label = {.label = "a"};
    static int begun;
    const uint8_t *end = memchr(bytes, 0, n < 16 ? n : 16);
    if (end == NULL) {
        return 0;
    }
    if (begun++ == 0) {
        fuzz_begin();
    }
    const char *name = (const char *)bytes;
    const void *data = end + 1;
    size_t k = n - (size_t)(end + 1 - bytes);
    if (strcmp(name, "images") == 0) {
        fuzz_put("images/cat/a.png", data, k);
        fuzz_read("images", NULL);
        fuzz_read("images", &size);
    } else if (strcmp(name, "idx") == 0) {
        fuzz_put("idx/images-idx2", data, k);
        fuzz_read("idx", NULL);
    } else if (strcmp(name, "csv") == 0 || strcmp(name, "tsv") == 0) {
        const char *file = name[0] == 'c' ? "f.csv" : "f.tsv";
        fuzz_put(file, data, k);
        fuzz_read(file, NULL);
        fuzz_read(file, &label);
    } else {
        fuzz_put("f", data, k);
        fuzz_read("f", NULL);
    }
    return 0;
}
