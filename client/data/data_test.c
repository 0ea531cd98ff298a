// SPDX-License-Identifier: Apache-2.0
// Every reader against files that numpy and Pillow wrote (tests/tools/make_datasets.py), and what
// is wrong with a file in a sentence.
#include "base/test.h"
#include "client/atomic_file.h"
#include "client/data/data.h"
#include "client/data/zip.h"
#include "client/npy.h"
#include "client/safetensors.h"

#include <fcntl.h>
#include <locale.h>
#include <sys/stat.h>
#include <unistd.h>

#define DATA "tests/data/datasets/"

static char dir[] = "/tmp/hearth-data-XXXXXX";
static char path[300];

static const char *at(const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *write_file(const char *name, const void *data, size_t n)
{
    const char *p = at(name);
    assert_ok(hth_atomic_file_write(p, &(hth_atomic_file_piece){(void *)data, n}, 1));
    return p;
}

static const char *write_text(const char *name, const char *text)
{
    return write_file(name, text, strlen(text));
}

static int tensor_of(const hth_data *data, const char *name)
{
    for (int i = 0; i < data->n_tensors; i++) {
        if (strcmp(data->tensors[i].name, name) == 0) {
            return i;
        }
    }
    fail_msg("%s has no tensor '%s'", data->path, name);
    return -1;
}

// check_tensor compares a tensor with an array, read at once and in pieces that cut elements.
static void check_tensor(hth_data *data, const char *name, const char *expected, const char *tail)
{
    char file[200];
    hearth_tensor want;
    snprintf(file, sizeof file, DATA "%s.%s.npy", expected, tail);
    assert_ok(hth_npy_read(file, &want));
    int i = tensor_of(data, name);
    const hth_data_tensor *t = &data->tensors[i];
    assert_int_equal(t->dtype, want.dtype);
    assert_int_equal(t->rank, want.rank);
    assert_memory_equal(t->shape, want.shape, (size_t)want.rank * sizeof *want.shape);
    assert_int_equal(t->bytes, want.bytes);
    uint8_t *got = malloc(want.bytes);
    assert_ok(hth_data_read(data, i, 0, got, want.bytes));
    assert_memory_equal(got, want.data, want.bytes);
    memset(got, 0, want.bytes);
    for (size_t k = want.bytes; k > 0;) { // backwards
        size_t n = k < 7 ? k : 7;
        k -= n;
        assert_ok(hth_data_read(data, i, k, got + k, n));
    }
    assert_memory_equal(got, want.data, want.bytes);
    assert_err(hth_data_read(data, i, t->bytes, got, 1), HTH_EINVAL, "outside");
    free(got);
    hth_free(want.data);
}

static hth_data *check(const char *file, const hth_data_options *options, const char *format,
                       const char *expected)
{
    hth_data *d;
    assert_ok(hth_data_open(file, options, &d));
    assert_string_equal(d->format, format);
    assert_int_equal(d->n_tensors, 2);
    check_tensor(d, "x", expected, "x");
    check_tensor(d, "y", expected, "y");
    return d;
}

static void refused(const char *file, const hth_data_options *options, hth_err want,
                    const char *words)
{
    hth_data *d;
    hth_err err = hth_data_open(file, options, &d);
    if (err != want || strstr(hth_err_detail(), words) == NULL ||
        strstr(hth_err_detail(), file) == NULL) {
        fail_msg("%s, with '%s' wanted: %d %s", file, words, err, hth_err_detail());
    }
    assert_null(d);
}

// ---- numpy

static void arrays(void **state)
{
    static const char *const files[] = {"stored", "deflated", "fortran"};
    char file[100];
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof file, DATA "%s.npz", files[i]);
        hth_data_close(check(file, NULL, "npz", "bytes"));
    }
    hth_data *d;
    assert_ok(hth_data_open(DATA "bytes.x.npy", NULL, &d));
    assert_string_equal(d->format, "npy");
    check_tensor(d, "x", "bytes", "x");
    hth_data_close(d);
}

static void folders_of_arrays(void **state)
{
    void *data;
    size_t n;
    for (int i = 0; i < 2; i++) {
        assert_ok(hth_file_load(i ? DATA "table.y.npy" : DATA "table.x.npy", 1 << 20, &data, &n));
        mkdir(at("arrays"), 0700);
        write_file(i ? "arrays/y.npy" : "arrays/x.npy", data, n);
        hth_free(data);
    }
    hth_data_close(check(at("arrays"), NULL, "npy", "table"));
}

// Every cut of an archive, and every byte of it changed: an error, or (where it does not matter) as
// before; never other data, for there is a checksum.
static void damaged_archives(void **state)
{
    static const char *const files[] = {DATA "stored.npz", DATA "deflated.npz"};
    uint8_t *data;
    size_t n;
    int other = 0;
    for (int k = 0; k < 2; k++) {
        hth_data *d;
        uint8_t x[105], want[105];
        assert_ok(hth_data_open(files[k], NULL, &d));
        assert_ok(hth_data_read(d, tensor_of(d, "x"), 0, want, sizeof want));
        hth_data_close(d);
        assert_ok(hth_file_load(files[k], 1 << 20, (void **)&data, &n));
        for (size_t cut = 0; cut < n; cut++) {
            write_file("cut.npz", data, cut);
            assert_int_not_equal(hth_data_open(at("cut.npz"), NULL, &d), HTH_OK);
        }
        for (size_t i = 0; i < n; i += TEST_STRIDE) {
            data[i] ^= 0x41;
            write_file("bad.npz", data, n);
            data[i] ^= 0x41;
            if (hth_data_open(at("bad.npz"), NULL, &d) == HTH_OK) {
                if (d->tensors[0].bytes == sizeof x && d->tensors[0].dtype == HEARTH_U8 &&
                    hth_data_read(d, 0, 0, x, sizeof x) == HTH_OK) {
                    other += memcmp(x, want, sizeof x) != 0;
                }
                hth_data_close(d);
            }
        }
        hth_free(data);
    }
    assert_int_equal(other, 0);
}

// ---- CSV

static void tables(void **state)
{
    hth_data_close(check(DATA "table.csv", NULL, "csv", "table"));
    hth_data_close(
        check(DATA "table-de.csv", &(hth_data_options){.label = "class"}, "csv", "table"));
    hth_data *d;
    float y[2];
    assert_ok(hth_data_open(write_text("t.csv", "a,y\n1,0.5\n2,3"), NULL, &d));
    assert_int_equal(d->tensors[1].dtype, HEARTH_F32);
    assert_int_equal(d->tensors[1].rank, 2);
    assert_ok(hth_data_read(d, 1, 0, y, sizeof y));
    assert_true(y[0] == 0.5f && y[1] == 3);
    hth_data_close(d);
}

static void bad_tables(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "empty"},
        {"\n  \n", "no lines"},
        {"a,y\n", "no rows"},
        {"a\n1\n", "one column"},
        {"1,2,3\n4,5,6\n", "row of numbers"},
        {"a,b\n1,2\n", "--label names one of a, b"},
        {"y,y\n1,2\n", "two columns are named 'y'"},
        {"a,y\n1,2\n3\n", "line 3 has 1 cells, but the header has 2"},
        {"a,y\n1,2,3\n", "line 2 has 3 cells"},
        {"a,y\n1,2\n\n,3\n", "line 4, column 'a': the cell is empty"},
        {"a,y\ncat,2\n", "line 2, column 'a': 'cat' is not a finite number"},
        {"a,y\n1,nan\n", "line 2, column 'y': 'nan'"},
        {"a,y\n0x10,1\n", "'0x10'"},
        {"a,y\n1e99,1\n", "too large for float32"},
        {"a,y\n3.4028235677973366e38,1\n", "too large for float32"}, // rounds up to 2^128
        {"a,y\n1,-1e99\n", "line 2, column 'y': -1e99 is too large for float32"},
        {"a,y\n1 2,1\n", "'1 2'"},
        {"a,y\n1,inf\n", "'inf'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        refused(write_text("bad.csv", bad[i].text), NULL, HTH_EINVAL, bad[i].words);
    }
    refused(write_file("zero.csv", "a,y\n1,\0002\n", 9), NULL, HTH_EINVAL, "line 2 holds a zero");
    refused(write_text("l.csv", "a,b\n1,2\n"), &(hth_data_options){.label = "c"}, HTH_EINVAL,
            "no column is named 'c'; there are a, b");
    char *line = malloc((17u << 20) + 8);
    memset(line, '1', 17u << 20);
    memcpy(line, "a,y\n", 4);
    refused(write_file("long.csv", line, 17u << 20), NULL, HTH_ETOOBIG, "line 2 has more than");
    free(line);
}

// ---- IDX

static void pairs(void **state)
{
    hth_data_close(check(DATA "idx/t10k-images-idx3-ubyte", NULL, "idx", "idx-bytes"));
    hth_data_close(check(DATA "idx/t10k-labels-idx1-ubyte", NULL, "idx", "idx-bytes"));
    hth_data_close(check(DATA "idx/train-labels-idx1.gz", NULL, "idx", "idx-floats"));
    hth_data_close(check(DATA "idx", NULL, "idx", "idx-floats")); // those that train
}

static void bad_pairs(void **state)
{
    static const char images[] = "\0\0\x08\x03\0\0\0\x01\0\0\0\x02\0\0\0\x02"
                                 "abcd",
                      labels[] = "\0\0\x08\x01\0\0\0\x01\x05";
    mkdir(at("idx"), 0700);
    write_file("idx/images-idx3-ubyte", images, 20);
    refused(at("idx"), NULL, HTH_EINVAL, "no pair");
    refused(at("idx/images-idx3-ubyte"), NULL, HTH_ENOENT, "the file with the labels is missing");
    write_file("idx/labels-idx1-ubyte", labels, 9);
    hth_data *d;
    assert_ok(hth_data_open(at("idx"), NULL, &d));
    hth_data_close(d);
    write_file("idx/a-images-idx3-ubyte", images, 20);
    write_file("idx/a-labels-idx1-ubyte", labels, 9);
    refused(at("idx"), NULL, HTH_EINVAL, "2 pairs");
    write_file("idx/a-labels-idx1-ubyte", labels, 8);
    refused(at("idx/a-images-idx3-ubyte"), NULL, HTH_ECORRUPT, "claims 1 bytes");
    write_file("idx/a-labels-idx1-ubyte", "\0\0\x08\x01\xff\xff\xff\xff\x05", 9);
    refused(at("idx/a-images-idx3-ubyte"), NULL, HTH_ECORRUPT, "claims 4294967295 bytes");
    write_file("idx/a-labels-idx1-ubyte", "\0\0\x07\x01\0\0\0\x01\x05", 9);
    refused(at("idx/a-images-idx3-ubyte"), NULL, HTH_ENOTSUP, "unknown type 0x07");
    write_file("idx/a-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\x05\x06", 10);
    refused(at("idx/a-images-idx3-ubyte"), NULL, HTH_EINVAL, "'x' has 1 samples, but 'y' has 2");
}

// A gzip file that holds other than it claims.
static void damaged_pairs(void **state)
{
    uint8_t *data, x[72];
    size_t n;
    hth_data *d;
    int read = 0;
    assert_ok(hth_file_load(DATA "idx/train-images-idx2.gz", 1 << 20, (void **)&data, &n));
    mkdir(at("gz"), 0700);
    write_file("gz/labels-idx1", "\0\0\x08\x01\0\0\0\x06\1\2\3\4\5\6", 14);
    for (size_t i = 10 + strlen((char *)data + 10) + 1; i < n; i++) { // after the file's name
        data[i] ^= 0x11;
        write_file("gz/images-idx2.gz", data, n);
        data[i] ^= 0x11;
        if (hth_data_open(at("gz"), NULL, &d) == HTH_OK) {
            read += d->tensors[0].bytes == 72 && hth_data_read(d, 0, 0, x, 72) == HTH_OK;
            hth_data_close(d);
        }
    }
    assert_int_equal(read, 0);
    hth_free(data);
}

// ---- images

static void pictures(void **state)
{
    hth_data *d = check(DATA "images", NULL, "images", "images");
    char *meta = hth_data_meta(d);
    assert_string_equal(meta,
                        "{\"format\":\"images\",\"samples\":8,\"classes\":[\"cat\",\"dog\"]}");
    hth_free(meta);
    hth_data_close(d);
    const hth_data_options size = {.height = 10, .width = 12};
    hth_data_close(check(DATA "sizes", &size, "images", "sizes"));
    refused(DATA "sizes", NULL, HTH_EINVAL,
            "'one/a.png' has 6x9 pixels (height x width), but 'two/a.png' has 23x31; --size");
    refused(DATA "table.csv", &size, HTH_EINVAL, "a size is for images, and this is csv");
    refused(DATA "images", &(hth_data_options){.label = "a"}, HTH_EINVAL, "a column of a CSV");
}

static void copy(const char *from, const char *to, size_t most)
{
    void *data;
    size_t n;
    assert_ok(hth_file_load(from, 1 << 20, &data, &n));
    write_file(to, data, n < most ? n : most);
    hth_free(data);
}

static void bad_pictures(void **state)
{
    hth_data *d;
    uint8_t x[162];
    mkdir(at("p"), 0700);
    refused(at("p"), NULL, HTH_EINVAL, "the folder is empty");
    mkdir(at("p/cat"), 0700);
    refused(at("p"), NULL, HTH_EINVAL, "class 'cat' has no images");
    write_text("p/cat/a.txt", "hello");
    refused(at("p"), NULL, HTH_EINVAL, "'cat/a.txt' is neither");
    unlink(at("p/cat/a.txt"));
    write_text("p/cat/a.png", "hello");
    refused(at("p"), NULL, HTH_EINVAL, "'cat/a.png': it is neither PNG nor JPEG");
    mkdir(at("p/a\xe9"), 0700); // Latin 1
    refused(at("p"), NULL, HTH_EINVAL, "is not UTF-8");
    rmdir(at("p/a\xe9"));
    copy(DATA "images/cat/a-rgb.png", "p/cat/a.png", 20);
    refused(at("p"), NULL, HTH_ECORRUPT, "'cat/a.png': a damaged PNG: it is cut off");
    copy(DATA "images/cat/a-rgb.png", "p/cat/a.png", 100);
    refused(at("p"), NULL, HTH_EINVAL, "the only class is 'cat'");
    mkdir(at("p/dog"), 0700);
    copy(DATA "images/cat/a-rgb.png", "p/dog/a.png", 1 << 20);
    assert_ok(hth_data_open(at("p"), NULL, &d));
    assert_err(hth_data_read(d, 0, 0, x, 1), HTH_ECORRUPT, "'cat/a.png': a damaged PNG");
    copy(DATA "sizes/two/a.png", "p/cat/a.png", 1 << 20);
    assert_err(hth_data_read(d, 0, 0, x, 1), HTH_EIO, "changed while");
    hth_data_close(d);
    copy(DATA "images/dog/c-progressive.JPEG", "p/cat/a.png", 500); // its bytes say what it is
    assert_ok(hth_data_open(at("p"), NULL, &d));
    assert_err(hth_data_read(d, 0, 0, x, 1), HTH_ECORRUPT, "a damaged JPEG: Premature end");
    hth_data_close(d);
    write_text("p/b.png", "");
    refused(at("p"), NULL, HTH_EINVAL, "'b.png' is not a folder");
}

// ---- all

static void others(void **state)
{
    refused(write_text("a.txt", "hello world"), NULL, HTH_EINVAL, "the file is none of");
    refused(write_text("a.safetensors", ""), NULL, HTH_EINVAL, "empty");
    refused(write_text("a.safetensors", "hello world"), NULL, HTH_EINVAL, "not a safetensors file");
    refused(at("nowhere"), NULL, HTH_ENOENT, "cannot open");
    refused("/dev/zero", NULL, HTH_EINVAL, "not a regular file");
    refused(write_text("a.npy", "\x93NUMPY\1"), NULL, HTH_ECORRUPT, "not a .npy file");
    float v = 1;
    hearth_tensor t = {.name = "x", .dtype = HEARTH_F32, .data = &v, .bytes = 4};
    assert_ok(hth_safetensors_write(at("v.safetensors"), &t, 1));
    refused(at("v.safetensors"), NULL, HTH_EINVAL, "single value");
    assert_ok(hth_npy_write(at("v.npy"), &t));
    refused(at("v.npy"), NULL, HTH_EINVAL, "single value");
    t.rank = 1;
    t.bytes = 0;
    assert_ok(hth_safetensors_write(at("v.safetensors"), &t, 1));
    refused(at("v.safetensors"), NULL, HTH_EINVAL, "no values");
}

// A dataset that is spooled is the same dataset.
static void spooled(void **state)
{
    hth_data *d;
    int fd;
    uint64_t bytes;
    char name[64];
    assert_ok(hth_data_open(DATA "images", NULL, &d));
    assert_ok(hth_data_spool(d, &fd, &bytes));
    hth_data_close(d);
    assert_int_equal(lseek(fd, 0, SEEK_END), bytes);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    hth_data_close(check(name, NULL, "safetensors", "images"));
    close(fd);
}

static hth_err open_and_read(const char *file, const hth_data_options *options)
{
    hth_data *d;
    uint8_t all[2048];
    HTH_TRY(hth_data_open(file, options, &d));
    hth_err err = HTH_OK;
    for (int i = 0; i < d->n_tensors && err == HTH_OK; i++) {
        err = hth_data_read(d, i, 0, all, (size_t)d->tensors[i].bytes);
    }
    hth_data_close(d);
    return err;
}

static void allocations_fail_cleanly(void **state)
{
    static const char *const files[] = {DATA "deflated.npz", DATA "fortran.npz",
                                        DATA "table.csv",    DATA "idx/train-images-idx2.gz",
                                        DATA "images",       DATA "bytes.x.npy"};
    int fds = test_open_fds();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FAULT_LOOP(open_and_read(files[i], NULL));
    }
    FAULT_LOOP(open_and_read(DATA "sizes", &(hth_data_options){.height = 10, .width = 12}));
    assert_int_equal(test_open_fds(), fds);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays),
        cmocka_unit_test(folders_of_arrays),
        cmocka_unit_test(damaged_archives),
        cmocka_unit_test(tables),
        cmocka_unit_test(bad_tables),
        cmocka_unit_test(pairs),
        cmocka_unit_test(bad_pairs),
        cmocka_unit_test(damaged_pairs),
        cmocka_unit_test(pictures),
        cmocka_unit_test(bad_pictures),
        cmocka_unit_test(others),
        cmocka_unit_test(spooled),
        cmocka_unit_test(allocations_fail_cleanly),
    };
    if (mkdtemp(dir) == NULL) {
        return 1;
    }
    int rv = cmocka_run_group_tests(tests, NULL, NULL);
    return test_remove(dir) == 0 ? rv : 1;
}
