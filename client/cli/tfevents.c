// SPDX-License-Identifier: Apache-2.0
#include "client/cli/tfevents.h"

#include <math.h>
#include <string.h>

#define CRC_POLYNOMIAL 0x82f63b78u // reflected
#define CRC_MASK       0xa282ead8u
#define EVENT_VALUES   8

uint32_t hth_crc32c(const void *data, size_t bytes)
{
    const uint8_t *p = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) {
            crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        }
    }
    return ~crc;
}

static uint32_t masked(const void *data, size_t bytes)
{
    uint32_t crc = hth_crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + CRC_MASK;
}

// A message that is being written; large enough for all that is written here.
typedef struct message {
    uint8_t bytes[1024];
    size_t n;
} message;

static void put_bytes(message *m, const void *data, size_t n)
{
    memcpy(m->bytes + m->n, data, n);
    m->n += n;
}

static void put_varint(message *m, uint64_t v)
{
    while (v >= 128) {
        m->bytes[m->n++] = (uint8_t)(v | 128);
        v >>= 7;
    }
    m->bytes[m->n++] = (uint8_t)v;
}

// Wire types of protobuf: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four bytes.
static void put_text(message *m, unsigned field, const void *data, size_t n)
{
    put_varint(m, field << 3 | 2);
    put_varint(m, n);
    put_bytes(m, data, n);
}

static void put_time(message *m, double wall)
{
    put_varint(m, 1 << 3 | 1);
    put_bytes(m, &wall, sizeof wall);
}

static bool put_record(FILE *file, const message *m)
{
    uint64_t length = m->n;
    uint32_t head = masked(&length, sizeof length), tail = masked(m->bytes, m->n);
    return fwrite(&length, sizeof length, 1, file) == 1 &&
           fwrite(&head, sizeof head, 1, file) == 1 && fwrite(m->bytes, m->n, 1, file) == 1 &&
           fwrite(&tail, sizeof tail, 1, file) == 1;
}

bool hth_tfevents_begin(FILE *file, double wall)
{
    static const char version[] = "brain.Event:2";
    message m = {.n = 0};
    put_time(&m, wall);
    put_text(&m, 3, version, sizeof version - 1);
    return put_record(file, &m);
}

bool hth_tfevents_scalars(FILE *file, double wall, int64_t step, const hth_scalar *values, int n)
{
    message m = {.n = 0}, summary = {.n = 0};
    for (int i = 0; i < n && i < EVENT_VALUES; i++) {
        message value = {.n = 0};
        float v = (float)values[i].value;
        if (isnan(values[i].value)) {
            continue;
        }
        put_text(&value, 1, values[i].tag, strnlen(values[i].tag, 60));
        put_varint(&value, 2 << 3 | 5);
        put_bytes(&value, &v, sizeof v);
        put_text(&summary, 1, value.bytes, value.n);
    }
    if (summary.n == 0) {
        return true;
    }
    put_time(&m, wall);
    put_varint(&m, 2 << 3);
    put_varint(&m, (uint64_t)step);
    put_text(&m, 5, summary.bytes, summary.n);
    return put_record(file, &m);
}
