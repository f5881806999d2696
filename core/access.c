// SPDX-License-Identifier: Apache-2.0
//
// See access.h. A key is stretched to nothing: it must be random. What is kept of it is BLAKE2b of a label under it, from which libsodium's crypto_kdf derives one key for each use.
// Whatever held a key's bytes on the way, the stack included, is wiped.

#include "core/access.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bytes.h"

#define USES 5u

_Static_assert(LIENI_PSK_MIN == crypto_generichash_KEYBYTES_MIN &&
                   LIENI_PSK_MAX == crypto_generichash_KEYBYTES_MAX,
               "BLAKE2b takes every key that we take");
_Static_assert(LIENI_MAC == crypto_generichash_KEYBYTES && LIENI_MAC == crypto_kdf_KEYBYTES,
               "derived keys are as long as MACs");

struct lieni_keyring {
    unsigned n;
    uint8_t derived[LIENI_KEYS_MAX][USES][LIENI_MAC];
};

// -- Keys --------------------------------------------------------------------------------------------------------------------------

// Where a mistake is, for the log. Never prints what may be a key.
struct source {
    struct lieni_log *log;
    const char *path; // NULL: the application's own
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct source *from,
                                                        const char *format, ...)
{
    char why[160];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    if (from->path)
        lieni_log_say(from->log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "option psk_file: '%s' %s",
                      from->path, why);
    else
        lieni_log_say(from->log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "psks of lien_ctx_opts: %s",
                      why);
    return LIEN_EOPTION;
}

static bool add(struct lieni_keyring *ring, const void *bytes, size_t len)
{
    static const uint8_t label[] = "lien pre-shared key 1";
    uint8_t root[crypto_kdf_KEYBYTES];
    if (ring->n == LIENI_KEYS_MAX)
        return false;
    (void)crypto_generichash(root, sizeof root, label, sizeof label - 1, bytes, len);
    for (unsigned use = 1; use <= USES; use++)
        (void)crypto_kdf_derive_from_key(ring->derived[ring->n][use - 1], LIENI_MAC, use,
                                         "lien-psk", root);
    sodium_memzero(root, sizeof root);
    ring->n++;
    return true;
}

static int add_given(struct lieni_keyring *ring, const struct source *from, const lien_psk *keys,
                     size_t n)
{
    if (!keys)
        return refuse(from, "is NULL, n_psks is %zu", n);
    if (n > LIENI_KEYS_MAX)
        return refuse(from, "%zu keys, at most %u are taken", n, LIENI_KEYS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (!keys[i].bytes || keys[i].len < LIENI_PSK_MIN)
            return refuse(from, "key %zu has %zu bytes, fewer than %u", i + 1,
                          keys[i].bytes ? keys[i].len : 0, LIENI_PSK_MIN);
        if (keys[i].len > LIENI_PSK_MAX)
            return refuse(from, "key %zu has %zu bytes, more than %u", i + 1, keys[i].len,
                          LIENI_PSK_MAX);
        (void)add(ring, keys[i].bytes, keys[i].len);
    }
    return 0;
}

// -- The file ----------------------------------------------------------------------------------------------------------------------

static bool blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

// One line, without its end: blank, a comment, or a key in hexadecimal.
static int add_line(struct lieni_keyring *ring, const struct source *from, const char *line,
                    size_t len, size_t number)
{
    uint8_t key[LIENI_PSK_MAX];
    size_t key_len = 0;
    int rc = 0;
    while (len > 0 && blank(*line)) {
        line++;
        len--;
    }
    while (len > 0 && blank(line[len - 1]))
        len--;
    if (len == 0 || *line == '#')
        return 0;
    if (len > 2 * LIENI_PSK_MAX)
        return refuse(from, "line %zu: a key has at most %u hexadecimal digits, this one %zu",
                      number, 2 * LIENI_PSK_MAX, len);
    if (sodium_hex2bin(key, sizeof key, line, len, NULL, &key_len, NULL) != 0 || len % 2 != 0)
        rc = refuse(from, "line %zu: not a key: an even number of hexadecimal digits", number);
    else if (key_len < LIENI_PSK_MIN)
        rc = refuse(from, "line %zu: a key has at least %u hexadecimal digits, this one %zu",
                    number, 2 * LIENI_PSK_MIN, len);
    else if (!add(ring, key, key_len))
        rc = refuse(from, "line %zu: at most %u keys are taken", number, LIENI_KEYS_MAX);
    sodium_memzero(key, sizeof key);
    return rc;
}

static int add_lines(struct lieni_keyring *ring, const struct source *from, const char *text,
                     size_t len)
{
    size_t number = 0;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - text) - at : len - at;
        int rc = add_line(ring, from, text + at, n, ++number);
        if (rc != 0)
            return rc;
        at += n + 1;
    }
    return ring->n > 0 ? 0 : refuse(from, "has no key in it");
}

// Whoever may read the file may connect, and whoever may write it decides who may.
static int check_file(const struct source *from, int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return refuse(from, "cannot be examined: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return refuse(from, "is not a regular file");
    if (st.st_uid != 0 && st.st_uid != geteuid())
        return refuse(from, "belongs to uid %lu, neither to root nor to this process's uid %lu",
                      (unsigned long)st.st_uid, (unsigned long)geteuid());
    if (st.st_mode & (S_IRWXO | S_IWGRP))
        return refuse(from, "is open to others (mode %04o): make it 0600, or 0640 for a group",
                      (unsigned)st.st_mode & 07777u);
    return 0;
}

static int read_file(const struct source *from, int fd, char *text, size_t *len)
{
    *len = 0;
    while (*len <= LIENI_KEY_BYTES) {
        ssize_t n = read(fd, text + *len, LIENI_KEY_BYTES + 1 - *len);
        if (n == 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return refuse(from, "cannot be read: %s", strerror(errno));
        *len += n > 0 ? (size_t)n : 0;
    }
    return refuse(from, "has more than %u bytes", LIENI_KEY_BYTES);
}

static int add_file(struct lieni_keyring *ring, const struct source *from)
{
    size_t len = 0;
    // Not blocking: what turns out to be a pipe is refused, and not waited for.
    int fd = open(from->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return refuse(from, "cannot be opened: %s", strerror(errno));
    char *text = sodium_malloc(LIENI_KEY_BYTES + 1);
    int rc = text ? check_file(from, fd) : LIEN_ENOMEM;
    if (rc == 0)
        rc = read_file(from, fd, text, &len);
    if (rc == 0)
        rc = add_lines(ring, from, text, len);
    sodium_free(text); // wipes
    close(fd);
    return rc;
}

// -- The ring ----------------------------------------------------------------------------------------------------------------------

int lieni_keyring_open(const lien_psk *keys, size_t n_keys, const char *path, struct lieni_log *log,
                       struct lieni_keyring **out)
{
    const struct source from = {.log = log, .path = n_keys > 0 ? NULL : path};
    *out = NULL;
    if (n_keys == 0 && !path[0])
        return 0;
    if (sodium_init() < 0)
        return LIEN_ESYS;
    struct lieni_keyring *ring = sodium_malloc(sizeof *ring);
    if (!ring)
        return LIEN_ENOMEM;
    ring->n = 0;
    int rc = n_keys > 0 ? add_given(ring, &from, keys, n_keys) : add_file(ring, &from);
    if (rc != 0) {
        sodium_free(ring);
        return rc;
    }
    (void)sodium_mprotect_readonly(ring); // one guard more where it works
    *out = ring;
    return 0;
}

void lieni_keyring_close(struct lieni_keyring *ring)
{
    sodium_free(ring);
}

// -- MACs --------------------------------------------------------------------------------------------------------------------------

void lieni_mac(const struct lieni_keyring *ring, unsigned key, enum lieni_mac_use use,
               const struct lieni_mac_part *parts, size_t n_parts, uint8_t mac[LIENI_MAC])
{
    crypto_generichash_state state;
    const uint8_t *secret = ring ? ring->derived[key][(unsigned)use - 1] : NULL;
    (void)crypto_generichash_init(&state, secret, ring ? LIENI_MAC : 0, LIENI_MAC);
    for (size_t i = 0; i < n_parts; i++) {
        uint8_t size[4];
        lieni_put32(size, (uint32_t)parts[i].len);
        (void)crypto_generichash_update(&state, size, sizeof size);
        (void)crypto_generichash_update(&state, parts[i].bytes, parts[i].len);
    }
    (void)crypto_generichash_final(&state, mac, LIENI_MAC);
    sodium_memzero(&state, sizeof state);
}

bool lieni_mac_same(const uint8_t a[LIENI_MAC], const uint8_t b[LIENI_MAC])
{
    return sodium_memcmp(a, b, LIENI_MAC) == 0;
}

int lieni_mac_find(const struct lieni_keyring *ring, enum lieni_mac_use use,
                   const struct lieni_mac_part *parts, size_t n_parts, const uint8_t mac[LIENI_MAC])
{
    int found = -1;
    for (unsigned i = 0; i < ring->n; i++) { // all of them, whichever fits
        uint8_t own[LIENI_MAC];
        lieni_mac(ring, i, use, parts, n_parts, own);
        const bool same = lieni_mac_same(own, mac);
        found = same && found < 0 ? (int)i : found;
        sodium_memzero(own, sizeof own);
    }
    return found;
}
