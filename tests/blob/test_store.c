// SPDX-License-Identifier: Apache-2.0
//
// The files of a lien-blob server: names, partial objects, locks, lists. Each test has a directory of its own.

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "tools/lien-blob/store.h"

static char dir[] = "/tmp/lien-blob-store.XXXXXX";
static struct store store;
static struct blob_error error;

static void begin(void)
{
    error = (struct blob_error){0};
    cr_assert(mkdtemp(dir));
    cr_assert(store_open(&store, dir, &error), "%s", error.text);
}

static void end(void)
{
    store_close(&store);
    char command[sizeof(dir) + 16];
    snprintf(command, sizeof(command), "rm -rf '%s'", dir);
    cr_assert_eq(system(command), 0);
}

static bool exists(const char *file)
{
    struct stat st;
    return fstatat(store.dir, file, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static enum blob_status name_status(const char *name)
{
    struct blob_error got = {0};
    store_check_name(name, &got);
    return got.status;
}

static void sum_of(const char *bytes, size_t len, uint8_t sum[BLOB_SUM_BYTES])
{
    XXH3_state_t *state = sum_new();
    sum_add(state, bytes, len);
    sum_get(state, sum);
    sum_free(&state);
}

// Puts `text` as `name` from end to end.
static bool put_text(const char *name, const char *text)
{
    struct put put;
    uint8_t sum[BLOB_SUM_BYTES];
    sum_of(text, strlen(text), sum);
    return store_put_begin(&store, name, strlen(text), &put, &error) &&
           (put.have == 0 || store_put_restart(&put, &error)) &&
           file_write(put.fd, text, strlen(text), 0, &error) &&
           store_put_finish(&put, strlen(text), sum, &error);
}

TestSuite(store, .init = begin, .fini = end);

Test(store, names_that_could_lead_astray_are_refused)
{
    char longest[BLOB_NAME_MAX + 2];
    memset(longest, 'n', sizeof(longest));
    longest[BLOB_NAME_MAX + 1] = '\0';
    cr_assert_eq(name_status(longest), BLOB_BAD_NAME);
    longest[BLOB_NAME_MAX] = '\0';
    cr_assert_eq(name_status(longest), BLOB_OK);
    cr_assert(put_text(longest, "the longest name works on the disk too"), "%s", error.text);

    const char *bad[] = {"",      ".",    "..",      "/",    "a/b", "/etc/passwd", "../x", "a..b",
                         ".hide", "x\ny", "\033[2J", "a/..", "..a", "tab\t",       "\x7f"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        cr_assert_eq(name_status(bad[i]), BLOB_BAD_NAME, "'%s'", bad[i]);
    const char *good[] = {"a", "a.b", "a.partial", "with space", "caf\xc3\xa9", "-rf", "a."};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        cr_assert_eq(name_status(good[i]), BLOB_OK, "'%s'", good[i]);
}

Test(store, every_operation_checks_the_name)
{
    struct put put;
    struct object_info info;
    int fd;
    struct blob_error e[4] = {{0}};
    cr_assert_not(store_put_begin(&store, "../x", 1, &put, &e[0]));
    cr_assert_not(store_get(&store, "../x", &fd, &info, &e[1]));
    cr_assert_not(store_stat(&store, "../x", &info, &e[2]));
    cr_assert_not(store_remove(&store, "../x", &e[3]));
    for (size_t i = 0; i < 4; i++)
        cr_assert_eq(e[i].status, BLOB_BAD_NAME);
}

Test(store, a_put_becomes_an_object_only_at_its_end)
{
    struct put put;
    struct object_info info;
    int fd;
    uint8_t sum[BLOB_SUM_BYTES];
    sum_of("hello", 5, sum);
    cr_assert(store_put_begin(&store, "o", 5, &put, &error));
    cr_assert(file_write(put.fd, "hello", 5, 0, &error));
    cr_assert_not(exists("o"));
    struct blob_error missing = {0};
    cr_assert_not(store_get(&store, "o", &fd, &info, &missing));
    cr_assert_eq(missing.status, BLOB_NOT_FOUND);
    cr_assert(store_put_finish(&put, 5, sum, &error), "%s", error.text);
    cr_assert_not(exists(".o.partial"));
    cr_assert(store_get(&store, "o", &fd, &info, &error));
    cr_assert_eq(info.size, 5u);
    if (info.flags & BLOB_HAS_SUM) // not every file system has attributes
        cr_assert_arr_eq(info.sum, sum, BLOB_SUM_BYTES);
    close(fd);
}

Test(store, a_put_replaces_and_readers_keep_the_old)
{
    struct object_info info;
    int fd;
    char bytes[3];
    cr_assert(put_text("o", "old"));
    cr_assert(store_get(&store, "o", &fd, &info, &error));
    cr_assert(put_text("o", "new"));
    cr_assert(file_read(fd, bytes, 3, 0, &error));
    cr_assert_arr_eq(bytes, "old", 3);
    close(fd);
}

Test(store, a_parked_put_is_found_again)
{
    struct put put;
    cr_assert(store_put_begin(&store, "o", 10, &put, &error));
    cr_assert(file_write(put.fd, "0123", 4, 0, &error));
    store_put_park(&put);
    struct object_info info;
    cr_assert(store_stat(&store, "o", &info, &error));
    cr_assert_eq(info.flags, BLOB_HAS_PARTIAL);
    cr_assert_eq(info.partial, 4u);
    cr_assert(store_put_begin(&store, "o", 10, &put, &error));
    cr_assert_eq(put.have, 4u);
    store_put_park(&put);
    // It cannot be the beginning of something shorter.
    cr_assert(store_put_begin(&store, "o", 3, &put, &error));
    cr_assert_eq(put.have, 0u);
    store_put_park(&put);
    cr_assert_not(exists(".o.partial"), "an empty partial is of no use");
}

Test(store, two_puts_of_one_name_exclude_each_other)
{
    struct put one, two;
    cr_assert(store_put_begin(&store, "o", 1, &one, &error));
    cr_assert_not(store_put_begin(&store, "o", 1, &two, &error));
    cr_assert_eq(error.status, BLOB_BUSY);
    struct blob_error other = {0};
    cr_assert(store_put_begin(&store, "p", 1, &two, &other));
    store_put_discard(&two);
    store_put_discard(&one);
    error = (struct blob_error){0};
    cr_assert(store_put_begin(&store, "o", 1, &two, &error));
    store_put_discard(&two);
}

Test(store, a_short_put_does_not_become_an_object)
{
    struct put put;
    uint8_t sum[BLOB_SUM_BYTES] = {0};
    cr_assert(store_put_begin(&store, "o", 10, &put, &error));
    cr_assert(file_write(put.fd, "0123", 4, 0, &error));
    cr_assert_not(store_put_finish(&put, 10, sum, &error));
    cr_assert_not(exists("o"));
    cr_assert_not(exists(".o.partial"));
}

Test(store, more_than_the_disk_has_is_refused_at_once)
{
    struct put put;
    cr_assert_not(store_put_begin(&store, "o", INT64_MAX, &put, &error));
    cr_assert_eq(error.status, BLOB_NO_SPACE, "%s", error.text);
    cr_assert_not(exists(".o.partial"));
}

Test(store, links_fifos_and_directories_are_no_objects)
{
    struct object_info info;
    struct put put;
    int fd;
    cr_assert_eq(symlinkat("/etc/passwd", store.dir, "link"), 0);
    cr_assert_eq(symlinkat("/etc/passwd", store.dir, ".o.partial"), 0);
    cr_assert_eq(mkfifoat(store.dir, "fifo", 0600), 0);
    cr_assert_eq(mkfifoat(store.dir, ".p.partial", 0600), 0);
    cr_assert_eq(mkdirat(store.dir, "dir", 0700), 0);
    const char *names[] = {"link", "fifo", "dir"};
    for (size_t i = 0; i < 3; i++) {
        struct blob_error get = {0}, stat = {0}, rm = {0}, begun = {0};
        cr_assert_not(store_get(&store, names[i], &fd, &info, &get));
        cr_assert_eq(get.status, BLOB_NOT_FOUND, "%s", get.text);
        cr_assert_not(store_stat(&store, names[i], &info, &stat));
        cr_assert_not(store_remove(&store, names[i], &rm));
        cr_assert_not(store_put_begin(&store, names[i], 1, &put, &begun));
        cr_assert_eq(begun.status, BLOB_BAD_NAME);
    }
    cr_assert_not(store_put_begin(&store, "o", 1, &put, &error), "through a link");
    cr_assert_not(store_put_begin(&store, "p", 1, &put, &error), "into a fifo");
    size_t n;
    bool more;
    struct blob_entry entries[4];
    cr_assert(store_list(&store, "", entries, 4, &n, &more, &error));
    cr_assert_eq(n, 0u);
}

Test(store, removing)
{
    struct put put;
    cr_assert(put_text("o", "x"));
    cr_assert(store_remove(&store, "o", &error));
    cr_assert_not(exists("o"));
    cr_assert_not(store_remove(&store, "o", &error));
    cr_assert_eq(error.status, BLOB_NOT_FOUND);
    error = (struct blob_error){0};
    cr_assert(store_put_begin(&store, "o", 9, &put, &error));
    cr_assert(file_write(put.fd, "x", 1, 0, &error));
    struct blob_error busy = {0};
    cr_assert_not(store_remove(&store, "o", &busy), "a running put keeps its file");
    store_put_park(&put);
    cr_assert(store_remove(&store, "o", &error));
    cr_assert_not(exists(".o.partial"));
}

// 40 objects and a partial one beside the 20th, listed in pages of `max`: each exactly once, in order.
static void list_in_pages(size_t max)
{
    struct blob_entry entries[64];
    char after[BLOB_NAME_MAX + 1] = "", expected[16];
    unsigned seen = 0, partials = 0;
    for (bool more = true; more;) {
        size_t n;
        cr_assert(store_list(&store, after, entries, max, &n, &more, &error));
        cr_assert(n > 0 && n <= max, "pages of %zu", max);
        for (size_t i = 0; i < n; i++) {
            if (entries[i].flags == BLOB_HAS_PARTIAL) {
                cr_assert_str_eq(entries[i].name, "o20");
                partials++;
                continue;
            }
            snprintf(expected, sizeof(expected), "o%02u", seen++);
            cr_assert_str_eq(entries[i].name, expected, "pages of %zu", max);
        }
        strcpy(after, entries[n - 1].name);
    }
    cr_assert_eq(seen, 40u, "pages of %zu", max);
    cr_assert_eq(partials, 1u, "pages of %zu", max);
}

Test(store, lists_come_in_order_and_in_pages)
{
    for (unsigned i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof(name), "o%02u", (i * 7) % 40);
        cr_assert(put_text(name, "x"));
    }
    struct put put;
    cr_assert(store_put_begin(&store, "o20", 9, &put, &error));
    cr_assert(file_write(put.fd, "x", 1, 0, &error));
    for (size_t max = 2; max <= 64; max++)
        list_in_pages(max);
    store_put_discard(&put);
}

Test(store, a_directory_has_one_server)
{
    struct store second;
    cr_assert_not(store_open(&second, dir, &error));
    cr_assert_eq(error.status, BLOB_BUSY);
    struct blob_error missing = {0};
    cr_assert_not(store_open(&second, "/nonexistent", &missing));
    cr_assert_eq(missing.status, BLOB_NOT_FOUND);
}

Test(store, old_partials_go_when_a_server_starts)
{
    struct put put;
    char path[sizeof(dir) + 32];
    for (int i = 0; i < 2; i++) {
        cr_assert(store_put_begin(&store, i ? "young" : "old", 9, &put, &error));
        cr_assert(file_write(put.fd, "x", 1, 0, &error));
        store_put_park(&put);
    }
    snprintf(path, sizeof(path), "%s/.old.partial", dir);
    cr_assert_eq(utime(path, &(struct utimbuf){1000000, 1000000}), 0);
    store_close(&store);
    cr_assert(store_open(&store, dir, &error));
    cr_assert_not(exists(".old.partial"));
    cr_assert(exists(".young.partial"));
}

Test(store, the_sum_of_a_file_does_not_depend_on_the_steps)
{
    char bytes[5000];
    uint8_t whole[BLOB_SUM_BYTES], steps[BLOB_SUM_BYTES];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (char)(i * 31);
    sum_of(bytes, sizeof(bytes), whole);
    int fd = openat(store.dir, "f", O_RDWR | O_CREAT, 0600);
    cr_assert(file_write(fd, bytes, sizeof(bytes), 0, &error));
    XXH3_state_t *sum = sum_new();
    char scratch[333];
    cr_assert(sum_add_file(sum, fd, sizeof(bytes), scratch, sizeof(scratch), &error));
    sum_get(sum, steps);
    cr_assert_arr_eq(whole, steps, BLOB_SUM_BYTES);
    sum_restart(sum);
    cr_assert_not(sum_add_file(sum, fd, sizeof(bytes) + 1, scratch, sizeof(scratch), &error),
                  "a file that is shorter than said");
    sum_free(&sum);
    close(fd);
}

// What the server makes of a piece for blob/digest, in place, is what the client makes of it elsewhere.
Test(sums, of_blocks_may_be_written_over_the_blocks)
{
    enum {
        MOST = 5 * BLOB_BLOCK_BYTES + 1
    };
    static uint8_t bytes[MOST], place[MOST];
    uint8_t sums[6 * BLOB_SUM_BYTES], one[BLOB_SUM_BYTES];
    for (size_t i = 0; i < MOST; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 9);
    const size_t lens[] = {0,   1, 15, BLOB_BLOCK_BYTES - 1, BLOB_BLOCK_BYTES, BLOB_BLOCK_BYTES + 1,
                           MOST};
    for (size_t k = 0; k < sizeof(lens) / sizeof(lens[0]); k++) {
        size_t len = lens[k], n = (len + BLOB_BLOCK_BYTES - 1) / BLOB_BLOCK_BYTES;
        memcpy(place, bytes, sizeof(bytes));
        cr_assert_eq(sum_blocks(bytes, len, sums), n * BLOB_SUM_BYTES);
        cr_assert_eq(sum_blocks_len(len), n * BLOB_SUM_BYTES);
        cr_assert_eq(sum_blocks(place, len, place), n * BLOB_SUM_BYTES);
        cr_assert_eq(memcmp(place, sums, n * BLOB_SUM_BYTES), 0, "%zu bytes", len);
        if (n == 0)
            continue;
        // The last block's is that of its bytes alone.
        XXH3_state_t *sum = sum_new();
        sum_add(sum, bytes + (n - 1) * BLOB_BLOCK_BYTES, len - (n - 1) * BLOB_BLOCK_BYTES);
        sum_get(sum, one);
        sum_free(&sum);
        cr_assert_arr_eq(sums + (n - 1) * BLOB_SUM_BYTES, one, BLOB_SUM_BYTES);
    }
}
